"""recommend through the real command: over published rows, and with what cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import Command, loaded, run

RESULTS = Path(__file__).parents[2] / "results"


def test_it_recommends_from_published_rows(command: Command) -> None:
    asked = ("--seq-len", "16K", "--mode", "decode", "--kv-heads", "2", "--max-error", ".1", "--machine", "Zen5")
    done = command("recommend", RESULTS / "decode", *asked, "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert told["choices"][0]["mechanism"].startswith("gqa")
    assert told["choices"][0]["how"] == "measured"
    assert told["choices"][0]["loss"] == "exact"


def test_where_nothing_can_be_said_it_names_the_runs_that_would(command: Command) -> None:
    done = command("recommend", RESULTS / "decode", "--seq-len", "3M", "--mode", "decode")
    assert done.code == 2
    done = command("recommend", RESULTS / "decode", "--seq-len", "3000K", "--mode", "decode", "--machine", "Zen5")
    assert (done.code, done.err) == (1, "")
    assert "efficient-attn run decode --seq-len 3072000 --device cpu" in done.out
    assert "left out: " in done.out


@pytest.mark.parametrize(
    ("asked", "says"),
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
def test_what_cannot_be_asked_is_one_line(asked: list[str], says: str, command: Command) -> None:
    done = command("recommend", RESULTS / "decode", "--seq-len", "1024", *asked)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1


def test_without_runs_it_says_so(tmp_path: Path) -> None:
    done = run("recommend", "--seq-len", "1024", cwd=tmp_path)
    assert done.code == 2
    assert "no runs in results/ here" in done.err


@pytest.mark.slow
def test_it_answers_without_torch(tmp_path: Path) -> None:
    found = loaded("recommend", str(RESULTS / "quickstart"), "--seq-len", "1024", cwd=tmp_path)
    assert {"torch", "matplotlib"} & found == set()
    assert "efficient_attn.report.answers.recommendation" in found
