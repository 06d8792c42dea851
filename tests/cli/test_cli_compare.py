"""The verbs compare and report --export: exit codes, formats and files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from compare_runs import failed, record, steady, write
from shell import Command, loaded

FULL = record("full", 64, steady(10), digest="abc")
LINEAR = "linear/n64"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Folders: base; same, slow (linear twice as slow), broken; alien (the same on another machine)."""
    linear = record("linear", 64, steady(2), digest="abc", speedup=5.0)
    base = [FULL, linear, record("linear", 128, steady(4))]
    write(tmp_path / "base", base)
    write(tmp_path / "same", [FULL, record("linear", 64, steady(2), digest="new")])
    write(tmp_path / "slow", [FULL, record("linear", 64, steady(4), digest="new", speedup=2.5)])
    write(tmp_path / "loud", [FULL, record("linear", 64, steady(2, spread=0.3))])
    write(tmp_path / "broken", [FULL, failed("linear", 64)])
    write(tmp_path / "alien", base, machine="M1-x8", torch="2.14.0")
    return tmp_path


@pytest.mark.parametrize(("new", "regressed"), [("same", False), ("slow", True), ("broken", True)])
def test_fail_on_regression_exits_with_1(new: str, regressed: bool, runs: Path, command: Command) -> None:
    done = command("compare", "base", new)
    assert (done.code, done.err) == (0, "")
    assert command("compare", "base", new, "--fail-on-regression").code == int(regressed)


def test_the_text_names_what_changed(runs: Path, command: Command) -> None:
    lines = command("compare", "base", "slow").out.splitlines()
    assert lines[0].startswith("base (base) and slow (new), by speedup")
    (line,) = [line for line in lines if line.startswith(LINEAR)]
    assert re.fullmatch(
        re.escape(LINEAR) + r" +2\.00x slower \([\d.]+-[\d.]+\) +2\.00 -> 4\.00 ms +5\.00 -> 2\.50 \*", line
    )
    assert lines[-2] == "1 slower, 1 same; 1 only in base"
    assert lines[-1] == "No other case became slower by more than 4.8% (at 95%)."
    same = command("compare", "base", "same")
    assert LINEAR not in same.out
    assert LINEAR in command("compare", "base", "same", "--all").out
    assert "by time (* decides)" in command("compare", "base", "slow", "--by", "latency").out


LOUD = ["compare", "base", "loud"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([*LOUD], 0),
        ([*LOUD, "--fail-if-blind"], 3),
        ([*LOUD, "--fail-if-blind", "--fail-on-regression"], 3),
        ([*LOUD, "--fail-if-blind", "--tolerance", "95%"], 0),
        (["compare", "base", "same", "--fail-if-blind"], 0),
        (["compare", "base", "same", "--fail-if-blind", "--tolerance", "2%"], 3),  # the drift hides it of the baseline
        (["compare", "base", "slow", "--fail-if-blind", "--fail-on-regression", "--tolerance", "2%"], 1),
    ],
)
def test_fail_if_blind_exits_with_3(arguments: list[str], code: int, runs: Path, command: Command) -> None:
    done = command(*arguments)
    assert (done.code, done.err) == (code, "")
    if code == 3:
        assert "could not have shown a difference of" in done.out


def test_comparing_a_run_with_itself_reports_what_it_rules_out(runs: Path, command: Command) -> None:
    done = command("compare", "base", "base")
    assert "A run compared with itself" in done.out
    assert re.search(r"3 same\nNo case became slower by more than \d\.\d% \(at 95%\)\.\n$", done.out)


def test_json_and_markdown_and_a_file(runs: Path, command: Command) -> None:
    found = json.loads(command("compare", "base", "slow", "--json").out)
    assert found == json.loads(command("compare", "base", "slow", "--format", "json").out)
    assert (found["regressed"], found["counts"]["slower"]) == (True, 1)
    done = command(
        "compare", "base", "slow", "--format", "markdown", "--out", "deep/comment.md", "--fail-on-regression"
    )
    assert done.code == 1
    first, second, last = done.out.splitlines()
    assert first == "1 slower, 1 same; 1 only in base"
    assert second.startswith("No other case became slower by more than")
    assert last == "comparison: deep/comment.md"
    shown = command("compare", "base", "slow", "--format", "markdown").out
    assert (runs / "deep/comment.md").read_text() == f"{shown}\n<!-- Made by efficient-attn -->\n"
    assert f"| `{LINEAR}` | 2.00x slower" in (runs / "deep/comment.md").read_text()


def test_github_annotates_and_writes_the_summary(runs: Path, command: Command) -> None:
    summary = {"GITHUB_STEP_SUMMARY": str(runs / "summary.md")}
    done = command("compare", "base", "slow", "--github", "--fail-on-regression", **summary)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("base (base) and slow (new)")
    error, notice = [line for line in done.out.splitlines() if line.startswith("::")]
    assert error.startswith(f"::error title=Regression::{LINEAR}: 2.00x slower (")
    assert notice == "::notice title=Not compared::1 only in base"
    assert f"| `{LINEAR}` | 2.00x slower" in (runs / "summary.md").read_text()
    assert "::" not in command("compare", "base", "slow", **summary).out
    assert "::" not in command("compare", "base", "base", "--github", "--all").out
    assert (runs / "summary.md").read_text().count("2.00x slower") == 1


def test_github_and_json_need_a_file(runs: Path, command: Command) -> None:
    done = command("compare", "base", "slow", "--github", "--json")
    assert (done.code, done.out) == (2, "")
    assert "--github prints annotations, which are not JSON; write the JSON to --out FILE" in done.err
    done = command("compare", "base", "slow", "--github", "--json", "--out", "x.json")
    assert "::error" in done.out
    assert json.loads((runs / "x.json").read_text())["regressed"]


def test_junit_is_written_and_replaced_but_no_other_file(runs: Path, command: Command) -> None:
    for _ in range(2):
        assert command("compare", "base", "slow", "--junit", "deep/junit.xml").code == 0
        suite = ElementTree.parse(runs / "deep/junit.xml").getroot()[0]
        assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    (runs / "other.xml").write_text("<mine/>")
    for file, message in (("other.xml", "not written by efficient-attn"), ("base", "one of the compared files")):
        done = command("compare", "base", "slow", "--junit", file)
        assert done.code == 2
        assert message in done.err


def test_a_run_is_exported_to_asv_from_a_repository_only(runs: Path, command: Command) -> None:
    done = command("report", "base", "--export", "asv=history")
    assert done.code == 2
    assert "base: asv needs the commit, and none was recorded" in done.err


def test_different_machines_are_refused_in_one_line(runs: Path, command: Command) -> None:
    done = command("compare", "base", "alien")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    for piece in ("machine Xeon-x2-15GiB in base, M1-x8 in alien", "torch 2.13.0 in base", "--across-machines"):
        assert piece in done.err
    done = command("compare", "base", "alien", "--across-machines")
    assert done.code == 0
    assert "\nUnlike machines: machine Xeon" in done.out


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_exports_are_written_and_compared_like_runs(flags: list[str], runs: Path, command: Command) -> None:
    for name in ("base", "slow"):
        written = [f"--export=pytest-benchmark={name}.json", f"--export=github-action=for/{name}.json"]
        done = command("report", name, *written, *flags)
        assert (done.code, done.err) == (0, "")
        output = json.loads(done.out) if flags else dict(line.split(": ") for line in done.out.splitlines())
        assert output == {"pytest-benchmark": f"{name}.json", "github-action": f"for/{name}.json"}
    assert {"rows.jsonl", "run.json"} <= {p.name for p in (runs / "base").iterdir()}
    assert not (runs / "base" / "report.html").exists()
    assert {e["unit"] for e in json.loads((runs / "for/base.json").read_text())} == {"ms"}
    assert "1 slower" in command("compare", "base.json", "slow.json").out
    assert "1 slower" in command("compare", "base", "slow.json").out


def test_a_file_that_cannot_be_written_is_named(runs: Path, command: Command) -> None:
    for arguments in (
        ("compare", "base", "same", "--out", "base/rows.jsonl/x"),
        ("report", "base", "--export", "github-action=base/rows.jsonl/x"),
    ):
        done = command(*arguments)
        assert done.code == 2
        assert "base/rows.jsonl/x: cannot be written" in done.err


def test_a_run_that_is_no_run_and_one_that_shares_nothing(runs: Path, command: Command) -> None:
    write(runs / "other", [record("linear", 4096, steady(2))])
    done = command("compare", "base", "other")
    assert done.code == 2
    assert "base and other share no case" in done.err


@pytest.mark.usefixtures("runs")
def test_compare_imports_nothing_heavy(tmp_path: Path) -> None:
    """Libraries that take long to import."""
    assert loaded("compare", "base", "slow", cwd=tmp_path).isdisjoint({"torch", "pandas", "matplotlib", "scipy.stats"})
