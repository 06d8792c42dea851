"""Training tasks: columns of rows for tasks of different kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import lra_files
import pytest
import tiny_suites

from efficient_attn.bench import session as session_module
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
    monkeypatch.setattr(session_module, "_inspect", lambda device, planned, conditions: {"device": device})
    with tiny_suites.isolated_registry():
        yield
    scratch.set_folder(None)


def _run(folder: Path, name: str, *variants: str, text: str = TEXT) -> list[Row]:
    text = text.replace("NAME", name)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "length", "write"),
    [
        ("pathfinder", 256, None),
        ("pathfinder", 256, lra_files.write_pathfinder),
        ("cifar10", 1024, lra_files.write_cifar10),
        ("imdb", 32, lra_files.write_reviews),
        ("matching", 32, lra_files.write_pairs),
    ],
)
@pytest.mark.sampled(6)
def test_models_are_trained_on_the_tasks_of_long_range_arena(
    name: str, length: int, write: Callable[[Path], Path] | None, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    keys = "side = 16\n" if name == "pathfinder" else ""
    if write is not None:
        (tmp_path / "data").mkdir()
        keys += f"data = '{write(tmp_path / 'data')}'\n"
    text = TEXT.replace("[20]", f"[{length}]").replace("examples = 8\n", f"examples = 8\n{keys}")
    (row,) = _run(tmp_path / "run", name, "full", text=text)
    assert row.extra["train.examples"] == 8
    assert row.steps in (1, 2)  # a quarter of the steps, or fewer if all answers are correct
    assert 0 <= float(row.extra["train.score"] or 0) <= 1
    assert str(row.extra["train.way"]) != "None"
    assert (row.extra["train.note"] is not None) == (name == "imdb")
