"""Output that cannot be written, errors that should not occur, and published runs given to every verb."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import commit_number
from shell import COMMAND, environment, run, run_fresh

from efficient_attn import cli
from efficient_attn.results.shards import list_run_folders

ROOT = Path(__file__).parents[2]
PUBLISHED = [path.name for path in list_run_folders(ROOT / "results")]
VERBS = ("report", "compare", "recommend", "plot", "runs", "claims", "publish", "clean", "plan")
TERMINALS = ({"COLUMNS": "1"}, {"HOME": ""}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
PLOTS = ("speed", "memory", "front", "perplexity", "crossover", "error", "ability")


def _run_in_shell(redirection: str, *arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit code and stderr of the command with redirected streams."""
    line = f'"$@" {redirection}'
    done = subprocess.run(
        ["bash", "-c", line, "bash", *COMMAND, *arguments],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("runs", "results"), ("--help",)], ids=" ".join)
def test_a_full_disk_ends_output_with_one_line(arguments: tuple[str, ...]) -> None:
    code, errors = _run_in_shell("> /dev/full", *arguments, cwd=ROOT)
    assert (code, errors) == (1, "efficient-attn: the output cannot be written: No space left on device\n")


def test_closed_streams_do_no_harm(tmp_path: Path) -> None:
    closed = (1, "efficient-attn: standard output is closed; nothing was done\n")
    assert _run_in_shell(">&-", "list", cwd=tmp_path) == closed
    assert _run_in_shell(">&- 2>&-", "list", cwd=tmp_path) == (1, "")
    assert _run_in_shell("2>&-", "list", cwd=tmp_path) == (0, "")
    assert _run_in_shell("2>&-", "list", "--nonsense", cwd=tmp_path) == (2, "")
    assert _run_in_shell("2> /dev/full", "info", "nonsense", cwd=tmp_path) == (2, "")
    assert _run_in_shell("<&- >&2", "list", cwd=tmp_path)[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_silent() -> None:
    assert _run_in_shell("| head -1", "list", cwd=ROOT) == (0, "")


@pytest.mark.parametrize("variables", TERMINALS, ids=str)
def test_unusual_terminals_are_accepted(variables: dict[str, str]) -> None:
    done = run_fresh("list", cwd=ROOT, **variables)
    assert (done.code, done.err) == (0, "")
    assert "sliding_window" in done.out.replace("\n", "")


@pytest.mark.parametrize("verb", VERBS)
def test_long_paths_are_one_line(verb: str, tmp_path: Path) -> None:
    path = "a" * 5000
    options = {"plot": ["--figure", "speed"], "recommend": ["--seq-len", "64"], "compare": [path]}
    done = run(verb, f"{path}.toml" if verb == "plan" else path, *options.get(verb, []), cwd=tmp_path)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert cli.UNEXPECTED not in done.err


def test_an_error_that_should_not_occur_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("in two\nlines")

    monkeypatch.setattr(cli, "make_parser", fail)
    assert cli.main(["list"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"efficient-attn: {cli.UNEXPECTED}: ZeroDivisionError: in two lines")
    assert "please report it" in err
    assert err.count("\n") == 1
    monkeypatch.setenv(cli.DEBUG, "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["list"])


def test_too_little_memory_is_not_a_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cli, "make_parser", fail)
    assert cli.main(["list"]) == 1
    assert capsys.readouterr().err == "efficient-attn: not enough memory: for this command\n"


@pytest.mark.sampled(18)
@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_run_passes_every_verb(name: str, tmp_path: Path) -> None:
    run_folder = tmp_path / "results" / name
    shutil.copytree(ROOT / "results" / name, run_folder, ignore=shutil.ignore_patterns("*.png", "*.html", "*.svg"))
    path = f"results/{name}"
    for command in (
        ["compare", path, path],
        ["compare", path, path, "--json"],
        ["report", path, "--out", "report"],
        ["report", path, "--export", "pytest-benchmark=a.json"],
        ["report", path, "--export", "github-action=b.json"],
        ["claims", path],
        ["runs", "results"],
        ["publish", path, "--site", "site"],
    ):
        done = run(*command, cwd=tmp_path)
        assert (done.code, cli.UNEXPECTED in done.err) == (0, False), (command, done.err)
        if "compare" in command and "--json" in command:
            comparison = json.loads(done.out)
            assert comparison["itself"]
            assert all((case["high"] or 1) / (case["low"] or 1) < 1e4 for case in comparison["cases"])
    others = [["plot", path, "--figure", figure] for figure in PLOTS]  # a run may lack what these need
    for command in (["recommend", path, "--seq-len", "1024"], ["report", path, "--export", "asv=asv"], *others):
        done = run(*command, cwd=tmp_path)
        assert done.code in (0, 1, 2), command
        assert cli.UNEXPECTED not in done.err, (command, done.err)
        assert done.err.count("\n") <= 1, (command, done.err)


@pytest.mark.slow
@pytest.mark.sampled(3)
def test_no_verb_fails_on_a_strangers_input() -> None:
    """Inputs of the trial, others in every commit."""
    script = ROOT / "suites" / "trials" / "hostile_inputs.py"
    seed = commit_number(ROOT) % 10**6
    done = subprocess.run(
        [sys.executable, str(script), "--count", "60", "--seed", str(seed)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 inputs, 0 faults" in done.stdout
