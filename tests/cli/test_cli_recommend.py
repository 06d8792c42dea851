"""The verb recommend: published rows, and invalid requirements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import Command, loaded, run

RESULTS = Path(__file__).parents[2] / "results"


def test_it_recommends_from_published_rows(command: Command) -> None:
    arguments = ("--seq-len", "16K", "--mode", "decode", "--kv-heads", "2", "--max-error", ".1", "--machine", "Zen4")
    done = command("recommend", RESULTS / "decode_zen4", *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    output = json.loads(done.out)
    assert output["choices"][0]["mechanism"].startswith("gqa")
    assert output["choices"][0]["how"] == "measured"
    assert output["choices"][0]["loss"] == "exact"


def test_without_an_answer_it_lists_the_missing_benchmarks(command: Command) -> None:
    done = command("recommend", RESULTS / "decode_zen4", "--seq-len", "3M", "--mode", "decode")
    assert done.code == 2
    done = command("recommend", RESULTS / "decode_zen4", "--seq-len", "3000K", "--mode", "decode", "--machine", "Zen4")
    assert (done.code, done.err) == (1, "")
    assert "efficient-attn run decode --seq-len 3072000 --device cpu" in done.out
    assert "left out: " in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "decode", "--no-causal"], "decode is always causal"),
        (["--memory", "2 parsecs"], "is not a size"),
        (["--latency", "50"], "is not a time such as 50ms"),
        (["--max-error", "-1"], "is not a number of at least 0"),
        (["--min-accuracy", "mqar"], "is not TASK=SHARE"),
        (["--min-accuracy", "mqar=.9", "--min-accuracy", "mqar=.8"], "names a task twice"),
        (["--min-accuracy", "spelling=.9"], "unknown task of --min-accuracy 'spelling'"),
        (["--machine", "Cray"], "unknown machine 'Cray'"),
        (["--max-error", ".1", "--max-error", ".2"], "argument --max-error: given twice; give it only once"),
    ],
)
def test_invalid_requirements_end_in_one_line(arguments: list[str], message: str, command: Command) -> None:
    done = command("recommend", RESULTS / "decode_zen4", "--seq-len", "1024", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_recommending_without_runs_ends_in_one_line(tmp_path: Path) -> None:
    done = run("recommend", "--seq-len", "1024", cwd=tmp_path)
    assert done.code == 2
    assert "no runs in results/ here" in done.err


@pytest.mark.slow
def test_recommending_imports_no_torch(tmp_path: Path) -> None:
    found = loaded("recommend", str(RESULTS / "quickstart_zen4"), "--seq-len", "1024", cwd=tmp_path)
    assert {"torch", "matplotlib"} & found == set()
    assert "efficient_attn.report.answers.recommendation" in found
