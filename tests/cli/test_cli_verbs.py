"""The verbs that measure nothing: list, info, plan, doctor and check; their imports."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shell import WRONG, loaded
from tiny_suites import load_suite

from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.bench.readiness import Diagnosis, Finding
from efficient_attn.cli import main
from efficient_attn.cli.isolated_checks import CheckResults
from efficient_attn.registry import names
from efficient_attn.testing import CHECKS, Outcome, Subject

NO_TORCH = [
    ("info", "--help"),
    ("--help",),
    ("list",),
    ("list", "--json"),
    ("run", "--help"),
    ("report", "--help"),
    ("doctor", "--help"),
    ("compare", "--help"),
    ("claims", "--help"),
    ("new", "--help"),
    ("new", "my_attn.py"),
    ("new", "my_task.py", "--kind", "task"),
    ("--version",),
]


@pytest.mark.parametrize("arguments", NO_TORCH)
def test_light_verbs_import_no_torch(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Libraries that take long to import."""
    assert loaded(*arguments, cwd=tmp_path).isdisjoint({"torch", "pandas", "matplotlib", "numpy", "scipy"})


def test_the_installed_command_is_the_same() -> None:
    script = Path(sys.executable).with_name("efficient-attn")
    if not script.is_file():
        pytest.skip("the package was not installed with its command")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == __import__("efficient_attn").__version__


def test_help_names_every_verb_and_every_override(command: Any) -> None:
    text = command("--help").out
    for verb in ("list", "info", "check", "new", "doctor", "plan", "run", "report", "compare", "claims"):
        assert f"\n    {verb} " in text
    text = command("run", "--help").out
    axes = ("seq-len", "causal", "dtype", "device", "threads", "batch", "heads", "kv-heads", "head-dim")
    axes += ("cache", "compiled", "cuda-graph")
    flags = ("variant", "activations", "seed", "quick", "out", "resume", "plugin", "json", "retry-failed", "timeout")
    for flag in (*axes, *flags, "memory-limit", "memory-budget", "start-method"):
        assert f"--{flag} " in text


def test_list_shows_all_mechanisms_and_suites(command: Any) -> None:
    done = command("list")
    assert done.err == ""
    assert "\x1b" not in done.out
    for name in names():
        assert f"\n{name} " in done.out
    assert "quickstart" in done.out
    found = json.loads(command("list", "--json").out)
    assert [m["name"] for m in found["mechanisms"]] == names()
    assert all(m["family"] and m["sentence"] for m in found["mechanisms"])
    assert "quickstart" in found["suites"]


def test_list_of_one_family(command: Any) -> None:
    found = json.loads(command("list", "--family", "shared_kv", "--json").out)
    assert [m["name"] for m in found["mechanisms"]] == names(family="shared_kv")


def test_info_describes_a_mechanism_with_its_options(command: Any) -> None:
    found = json.loads(command("info", "sliding_window:window=32", "--json").out)
    assert (found["name"], found["family"], found["options"]) == ("sliding_window", "sparse", {"window": 32})
    assert found["traits"]["causal"] is True
    assert found["growth"].keys() == {"time", "memory"}
    text = command("info", "sliding_window").out
    assert "window=128" in text
    assert "arXiv" in text


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("SVG", b"<?xml"), ("pdf", b"%PDF")])
def test_info_draws_a_pattern_into_a_file(suffix: str, start: bytes, command: Any, tmp_path: Path) -> None:
    done = command("info", "sliding_window:window=16|sliding_window:window=3", "--picture", f"new/a.{suffix}")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"keeps 24.7% of causal pairs\npicture: new/a.{suffix}\n")
    assert (tmp_path / f"new/a.{suffix}").read_bytes().startswith(start)


def test_info_as_json_names_the_picture(command: Any) -> None:
    found = json.loads(command("info", "sliding_window:window=3", "--picture", "a.png", "--json").out)
    assert found["picture"] == "a.png"
    assert found["pattern"]["length"] == 32


def test_list_draws_every_pattern_of_a_family(command: Any, tmp_path: Path) -> None:
    done = command("list", "--family", "sparse", "--picture", "all.svg")
    assert (done.code, done.err) == (0, "")
    drawn = (tmp_path / "all.svg").read_text()
    assert all(f">{name}" in drawn for name in names(family="sparse"))
    found = json.loads(command("list", "--json", "--picture", "all.png").out)
    assert found["picture"] == "all.png"


@pytest.mark.sampled(6)
def test_plan_as_json_has_unique_stable_keys(command: Any) -> None:
    found = json.loads(command("plan", "quickstart", "--json", PYTHONHASHSEED="1").out)
    assert isinstance(found, list)
    keys = [case["case_key"] for case in found]
    assert len(set(keys)) == len(keys) > 40
    assert keys == [
        case.key for case in make_plan(load_suite("quickstart"), Overrides())
    ]  # as any other process has it


def test_plan_takes_every_override(command: Any) -> None:
    flags = "--seq-len 32,96 --variant full,linear --device cpu --dtype float32,float64 --threads 2 --causal true"
    flags += " --batch 3 --heads 2 --head-dim 16 --seed 5"
    found = json.loads(command("plan", "quickstart", *flags.split(), "--json").out)
    timed = [c for c in found if c["task"] == "speed"]
    assert {c["seq_len"] for c in timed} == {32, 96}
    assert {c["dtype"] for c in found} == {"float32", "float64"}
    assert {c["variant"] for c in found} == {"full", "linear"}
    assert {(c["threads"], c["batch"], c["heads"], c["head_dim"]) for c in timed} == {(2, 3, 2, 16)}
    assert {c["causal"] for c in found} == {True}
    assert {c["seed"] for c in found} == {5}


def test_plan_shows_a_table(command: Any) -> None:
    done = command("plan", "quickstart", "--quick")
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert "sliding_window:window=128" in done.out
    assert re.search(r"\n\d+ cases\nabout .* (s|min|h), peak memory about [\d.]+ [GM]iB\n$", done.out)


def test_plan_estimates_each_case(command: Any) -> None:
    found = json.loads(command("plan", "quickstart", "--quick", "--json").out)
    assert all(case["expected_s"] > 0 and case["expected_bytes"] > 0 for case in found)


def test_plan_does_not_estimate_absent_devices(command: Any) -> None:
    plan = "plan", "quickstart", "--quick", "--device", "cuda", "--dtype", "bfloat16"
    done = command(*plan)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"\n\d+ cases\ncuda: not estimated \(.*CUDA.*\)\n$", done.out)
    found = json.loads(command(*plan, "--json").out)
    assert {(case["expected_s"], case["expected_bytes"]) for case in found} == {(None, None)}


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("note", 0), ("problem", 1)])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_doctor_fails_only_with_strict(
    level: Any, code: int, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Diagnosis((Finding(topic="quiet", message="other programs used 1.3 cores", level=level),))
    monkeypatch.setattr("efficient_attn.bench.doctor.diagnose", lambda **_: found)
    assert main(["doctor", "--strict", *flags]) == code
    assert main(["doctor", *flags]) == 0


def test_doctor_reports_the_machine(command: Any) -> None:
    done = command("doctor", "--quick")
    assert (done.code, done.err) == (0, "")
    assert done.out.strip()
    assert isinstance(json.loads(command("doctor", "--quick", "--threads", "1", "--json").out), dict)


@pytest.mark.sampled(6)
def test_check_fails_for_a_file_that_violates_its_traits(command: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG)
    done = command("check", "mine.py", "--json")
    assert done.code == 1, done.err
    outcomes = json.loads(done.out)["zz_wrong"]
    assert {"passed", "failed"} <= {o["status"] for o in outcomes}
    failed = [o for o in outcomes if o["status"] == "failed"]
    assert all(o["reason"] and o["advice"].startswith("property: ") for o in failed)


@pytest.mark.sampled(6)
def test_check_of_a_good_mechanism_shows_its_counts(command: Any) -> None:
    done = command("check", "full", "--dtype", "float32", "--seed", "1")
    assert done.code == 0, done.out + done.err
    assert re.fullmatch(r"full: \d+ passed, \d+ do not apply \(seed 1\)\n", done.out)


CREATED = '''
import efficient_attn as ea

@ea.register("zz_good", family="sparse")
class Good(ea.SparseAttention):
    """The keys right beside a query."""

    def __init__(self) -> None:
        super().__init__(ea.patterns.Band(-1, 1))

@ea.register("zz_broken", family="sparse")
class Broken(ea.SparseAttention):
    """It cannot be created."""

    def __init__(self) -> None:
        super().__init__(no_such_pattern)

@ea.register("zz_positional", family="sparse")
class Positional(Good):
    """An option without a default."""

    def __init__(self, window) -> None:
        super().__init__()
'''


@pytest.mark.sampled(6)
def test_check_names_each_mechanism_of_a_file_that_cannot_be_created(command: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CREATED)
    done = command("check", "mine.py")
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[:2] == [
        "FAILED declared_traits of zz_broken",
        "  NameError: name 'no_such_pattern' is not defined (mine.py, line 16)",
    ]
    assert any("'window' is not; write `def __init__(self, *, window=64)`" in line for line in lines)
    assert lines[-3].startswith("zz_good: ")
    assert lines[-2:] == ["zz_broken: 1 failed (seed 0)", "zz_positional: 1 failed (seed 0)"]


COVERED = f'''{CREATED}
@ea.register("zz_untold", family="full")
class Untold(ea.Attention):
    """It declares no traits."""

    def oracle(self, q, k, v, mask, **inputs):
        return q
'''


@pytest.mark.sampled(6)
def test_check_prints_outcomes_before_it_writes_their_coverage(command: Any, tmp_path: Path) -> None:
    """Mechanisms that cannot be created or declare no traits have none, and the others keep theirs."""
    (tmp_path / "mine.py").write_text(COVERED)
    done = command("check", "mine.py", "--coverage", "new/pairs.csv")
    assert done.code == 1
    names = ["zz_good", "zz_broken", "zz_positional", "zz_untold"]
    assert [line.partition(": ")[0] for line in done.out.splitlines()[-4:]] == names
    assert done.err.splitlines() == [
        "efficient-attn: zz_broken: no coverage: sizes_and_pairs did not finish",
        "efficient-attn: zz_positional: no coverage: it cannot be created",
        "efficient-attn: zz_untold: no coverage: sizes_and_pairs did not finish",
    ]
    with (tmp_path / "new/pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["mechanism"] for row in rows} == {"zz_good"}
    assert any(int(row["cases"]) for row in rows)


def test_check_refuses_a_coverage_file_that_cannot_be_written_before_it_runs(command: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for path in ("folder", "file/pairs.csv", "/proc/new/pairs.csv", "n" * 300):
        done = command("check", "full", "--coverage", path)
        assert (done.code, done.out) == (2, "")
        assert re.fullmatch(r"efficient-attn: .*: cannot be written: .*\n", done.err), done.err


def test_a_coverage_file_that_cannot_be_written_after_the_checks_costs_no_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "pairs.csv"

    def run_checks(subject: Subject, *, coverage: bool) -> CheckResults:
        path.mkdir()
        return CheckResults([Outcome(CHECKS[0], "passed")], coverage=[])

    monkeypatch.setattr("efficient_attn.cli.isolated_checks.run_isolated_checks", run_checks)
    assert main(["check", "full", "--coverage", str(path)]) == 2
    assert capsys.readouterr() == (
        "full: 1 passed (seed 0)\n",
        f"efficient-attn: {path}: cannot be written: a folder; name another file\n",
    )


@pytest.mark.sampled(6)
def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m efficient_attn plan quickstart --json | head -1"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("[\n", "")
