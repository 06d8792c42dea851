"""The verb run: its output, its files, and resuming."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from shell import TINY, WRONG, Command, Finished
from tiny_suites import load_suite

import efficient_attn as ea
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.results.rows import COLUMNS


def _planned() -> list[str]:
    overrides = Overrides(axes={"seq_len": [64, 128]}, variants=["full", "linear"], quick=True)
    return [case.key for case in make_plan(load_suite("quickstart"), overrides)]


def test_a_run_leaves_rows_a_description_and_a_report(finished: Finished) -> None:
    names = {p.name for p in finished.folder.iterdir()}
    assert {"rows.jsonl", "run.json", "report.html", "report.md"} <= names
    assert not [n for n in names if n.endswith(".tmp")]
    (session,) = json.loads((finished.folder / "run.json").read_text())["sessions"]
    assert session["command"][1:3] == ["run", "quickstart"]
    assert session["finished"]


def test_overrides_are_shown_everywhere(finished: Finished) -> None:
    (session,) = json.loads((finished.folder / "run.json").read_text())["sessions"]
    assert session["trial"] == ["--quick", "--variant full,linear", "--seq-len 64,128"]
    for name in ("report.html", "report.md"):
        said = "Not a result of the suite as written: out ran with --quick"
        assert said in (finished.folder / name).read_text()
    assert "forward, length 128 (with overrides)\n" in finished.done.out
    assert (
        "overridden suite, not its standard settings: --quick, --variant full,linear, --seq-len 64,128"
        in finished.done.out
    )


@pytest.mark.sampled(3, together="cli_run.watched")
def test_a_complete_run_has_no_overrides(watched: Finished) -> None:
    (session,) = json.loads((watched.folder / "run.json").read_text())["sessions"]
    assert session["trial"] == json.loads(watched.done.out)["trial"] == []
    assert "overrid" not in (watched.folder / "report.md").read_text()


def test_every_planned_case_is_one_row(finished: Finished) -> None:
    rows = ea.load(finished.folder)
    assert list(rows.case_key) == _planned()
    fixed = [name for name in COLUMNS if name != "extra"]  # which comes as columns of its own
    assert list(rows.columns[: len(fixed)]) == fixed
    assert {name.partition(".")[0] for name in rows.columns[len(fixed) :]} == {"fidelity"}
    assert set(rows.status) == {"ok"}
    timed = rows[rows.task == "speed"]
    assert timed[["latency_ms", "latency_ms_low", "latency_ms_high", "speedup"]].notna().all(axis=None)
    assert (timed[timed.variant == "full"].speedup == 1).all()
    assert set(rows[rows.task == "fidelity"].layer) == {0, 2, 5}


def test_output_without_a_terminal_is_plain(finished: Finished) -> None:
    said = finished.done.err.splitlines()
    lines = [line for line in said if not line.startswith("efficient-attn: not ready to measure: ")]
    assert len(said) - len(lines) <= 1
    assert len(lines) == len(_planned())
    for number, line in enumerate(lines, 1):
        assert re.match(rf"\[{number}/{len(lines)}\] +\d+\.\d s  \w+ (full|linear) ", line)
    text = finished.done.out
    assert "\x1b" not in text + finished.done.err
    assert "\r" not in text + finished.done.err
    for piece in (
        "forward, length 128",
        "decode, length 128",
        "fidelity: MiniLM, N = 384, bidirectional",
        f"cases: {len(lines)} ok",
    ):
        assert piece in text
    assert re.search(r"^rounds: \d+, (none|\d+%) disturbed", text, re.MULTILINE)
    assert text.splitlines()[-1] == f"page: {Path('out') / 'report.html'}"


@pytest.mark.sampled(3, together="cli_run.watched")
def test_resume_starts_in_an_absent_folder_and_json_is_the_only_output(watched: Finished) -> None:
    found = json.loads(watched.done.out)
    assert (found["folder"], found["statuses"]) == ("out", {"ok": 4})
    assert (watched.folder.parent / found["page"]).is_file()
    assert len(ea.load(watched.folder)) == 4


@pytest.mark.sampled(3, together="cli_run.watched")
def test_a_terminal_gets_a_progress_bar(watched: Finished) -> None:
    screen = watched.done.err
    assert "\x1b[" in screen
    assert "4/4" in screen
    assert "left" in screen
    assert "━" in screen
    assert "[1/4]" not in screen  # the plain lines are for pipes


@pytest.mark.sampled(3, together="cli_run.watched")
def test_resuming_a_finished_run_adds_nothing(watched: Finished, command: Command, tmp_path: Path) -> None:
    copy = shutil.copytree(watched.folder, tmp_path / "copy")
    before = (copy / "rows.jsonl").read_bytes()
    done = command("run", watched.folder.parent / "tiny.toml", "--out", "copy", "--resume")
    assert done.code == 0, done.err
    assert (copy / "rows.jsonl").read_bytes() == before
    assert done.err == ""
    assert "forward, length 16" in done.out


@pytest.mark.sampled(3, together="cli_run.watched")
@pytest.mark.parametrize("flags", [["--json"], []])
def test_report_writes_the_page_to_another_folder(
    flags: list[str], watched: Finished, command: Command, tmp_path: Path
) -> None:
    done = command("report", watched.folder, "--out", "page", *flags)
    assert done.code == 0, done.err
    lines = dict(line.split(": ") for line in done.out.splitlines()) if not flags else json.loads(done.out)
    assert {Path(p).suffix for p in lines.values()} == {".html", ".md", ".csv"}
    for path in lines.values():
        assert Path(path).parent == Path("page")
        assert (tmp_path / path).stat().st_size > 500


def test_failed_cases_exit_with_1_and_impossible_cases_do_not(command: Command, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "mine.py").write_text(WRONG)
    options = ("--plugin", "mine.py", "--variant", "full,zz_wrong", "--seq-len", "8")
    done = command("run", "tiny.toml", *options)  # without --out: results/local/SUITE-TIME
    assert done.code == 1, done.err
    assert re.search(r"forward zz_wrong n=8: invalid \(the output differs from the reference", done.err)
    (folder,) = (tmp_path / "results" / "local").iterdir()
    assert re.fullmatch(r"tiny-\d{8}-\d{6}", folder.name)
    rows = ea.load(folder)
    assert list(rows.status) == ["ok", "invalid"]
    assert rows.latency_ms.isna().tolist() == [False, True]
    assert "invalid" in (folder / "report.html").read_text()


def test_skipped_and_unsupported_are_no_failure(command: Command, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    absent, name = ("mps", "MPS") if torch.cuda.is_available() else ("cuda", "CUDA")
    options = ("--device", f"cpu,{absent}", "--dtype", "float32", "--variant", "full:backend=magic,linear")
    done = command("run", "tiny.toml", *options, "--out", "out")
    assert done.code == 0, done.err
    rows = ea.load(tmp_path / "out")
    assert rows.status.value_counts().to_dict() == {"skipped": 4, "unsupported": 2, "ok": 2}
    assert rows[rows.status == "skipped"].reason.unique().tolist() == [f"no {name} device on this machine"]


def _activations() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((2, 3, 20, 8)).astype("float32") for name in ("q", "k", "v")}


def test_fidelity_on_given_activations(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **_activations())
    (tmp_path / "fit.toml").write_text(TINY.replace('"forward"', '"fidelity"'))
    done = command("run", "fit.toml", "--activations", "mine.npz", "--out", "out", "--json")
    assert done.code == 0, done.err
    rows = ea.load(tmp_path / "out")
    assert len(rows) == 4
    assert set(rows.layer) == {0, 1}
    assert set(rows.seq_len) == {20}
    assert set(rows.heads) == {3}
    assert rows.inputs.str.startswith("mine@").all()
    assert (rows[rows.variant == "full"].relative_error < 1e-5).all()
    assert (rows[rows.variant == "linear"].relative_error > 1e-2).all()


def test_activations_may_be_safetensors(command: Command, tmp_path: Path) -> None:
    save_file({n: torch.from_numpy(x) for n, x in _activations().items()}, tmp_path / "mine.safetensors")
    done = command("plan", "quickstart", "--activations", "mine.safetensors", "--seed", "1", "--json")
    found = [case for case in json.loads(done.out) if case["task"] == "fidelity"]
    assert {(c["layer"], c["seq_len"], c["heads"], c["kv_heads"], c["head_dim"]) for c in found} == {
        (layer, 20, 3, 3, 8) for layer in (0, 1)
    }
