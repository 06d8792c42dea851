"""Training from the command line: one task of a suite, its rows and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import Command

import efficient_attn as ea
from efficient_attn.results.checkpoints import CHECKPOINT_FOLDER

pytestmark = pytest.mark.slow

TRIAL = ("accuracy_full", "--task", "mqar", "--variant", "sliding_window:window=32", "--quick")
SMALL = ("--set", "steps=16", "--set", "examples=8", "--set", "batch=4")


def test_a_trial_ends_with_an_accuracy_and_leaves_no_checkpoint(command: Command, tmp_path: Path) -> None:
    done = command("run", *TRIAL, *SMALL, "--out", "out")
    assert (done.code, done.err.count("Traceback")) == (0, 0), done.err
    (row,) = ea.load(tmp_path / "out").to_dict("records")
    assert (row["task"], row["variant"], row["status"]) == ("mqar", "sliding_window:window=32", "ok")
    assert 0 <= row["accuracy"] <= 1
    assert (row["steps"], row["train.budget"], row["train.batch"]) == (4, 4, 4)
    assert not (tmp_path / "out" / CHECKPOINT_FOLDER).exists()
    (session,) = json.loads((tmp_path / "out" / "run.json").read_text())["sessions"]
    assert "--task mqar" in session["trial"]


def test_a_plan_lists_the_attempts_of_the_selected_tasks(command: Command) -> None:
    done = command("plan", "accuracy_full", "--task", "mqar,copying", "--variant", "full", "--json")
    assert done.code == 0, done.err
    cases = json.loads(done.out)
    assert [case["task"] for case in cases] == ["mqar"] * 13 + ["copying"] * 13
    assert [case["inputs"] for case in cases[:13]] == [
        *("seed 0, grid, rate 0.001", "seed 0, grid, rate 0.002", "seed 0, grid, rate 0.004"),
        *("seed 0, above, rate 0.008", "seed 0, below, rate 0.0005"),
        *("seed 0, above, rate 0.016", "seed 0, below, rate 0.00025"),
        *("seed 0, above, rate 0.032", "seed 0, below, rate 0.000125"),
        *("seed 1, best", "seed 2, best", "seed 3, more", "seed 4, more"),
    ]
    done = command("plan", *TRIAL)
    assert (done.code, "1 cases" in done.out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "nonsense"), "--task: accuracy: unknown task 'nonsense' (choices: induction, "),
        (("--task", "mqarr"), "unknown task 'mqarr'; did you mean 'mqar'? (choices: "),
        (("--task", "speed"), "--task: accuracy: unknown task 'speed' (choices: induction, "),
        (("--task", "mqar", "--set", "pair=4"), "did you mean 'pairs'?"),
        (("--task", "mqar", "--set", "pairs=40"), "mqar: 40 pairs need an even length of at least 160, not 64"),
    ],
)
def test_unknown_names_end_in_one_line(command: Command, arguments: tuple[str, ...], message: str) -> None:
    done = command("run", "accuracy", *arguments, "--out", "out")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
