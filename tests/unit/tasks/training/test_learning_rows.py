"""Training tasks: columns of rows for tasks of different kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_suites

from efficient_attn.bench import run as run_module
from efficient_attn.bench.measuring import scratch
from efficient_attn.bench.run import run
from efficient_attn.bench.task_registry import register_task
from efficient_attn.results.rows import Row
from efficient_attn.results.store import read
from efficient_attn.tasks.problems.dates import DATES
from efficient_attn.tasks.training.learning import make_task

TEXT = """
title    = "Tiny training"
measure  = ["NAME"]
axes     = { seq_len = [20], threads = [1] }
examples = 8
steps    = 8
batch    = 4
layers   = 1
[[variant]]
name = "full"
[[variant]]
name    = "sliding_window"
options = { window = 3 }
"""


@pytest.fixture(autouse=True)
def _isolated_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(run_module, "_inspect", lambda device, planned, conditions: {"device": device})
    with tiny_suites.isolated_registry():
        yield
    scratch.set_folder(None)


def _run(folder: Path, name: str, *variants: str) -> list[Row]:
    text = TEXT.replace("NAME", name)
    cases = tiny_suites.plan(text, quick=True, variants=variants)
    assert run(tiny_suites.parse(text), cases, folder, start_method="inline").failed == 0
    return [record.row for record in read(folder)]


def test_a_window_of_state_tracking_reaches_the_first_products(tmp_path: Path) -> None:
    full, window = (row.extra for row in _run(tmp_path, "s3"))
    assert (full["train.way"], full["train.reach"]) == ("the last element alone", None)
    assert full["train.shortcut"] == pytest.approx((1 + 19 / 6) / 20)
    within = 5 / 20  # one layer of a window of 3 after the convolution sees 4 positions back
    assert window["train.reach"] == pytest.approx(within + (1 - within) / 6)


def test_scores_of_whole_sequences_have_the_accuracy_of_tokens(tmp_path: Path) -> None:
    register_task(make_task(replace(DATES, name="whole dates", metric="exact")))
    (whole,), (single,) = _run(tmp_path / "0", "whole dates", "full"), _run(tmp_path / "1", "dates", "full")
    assert whole.metric == "share of whole sequences"
    assert whole.extra["train.tokens"] == single.accuracy  # the same model and examples
    assert whole.extra["train.tokens"] > whole.extra["train.score"]  # type: ignore[operator]
    assert single.extra["train.tokens"] is None
