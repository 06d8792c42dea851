"""What is known of quality: perplexities over a model's own, scores, and exactness by what is asked."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import report_runs as runs
from learned_runs import attempt

from efficient_attn.report import gather, select
from efficient_attn.report.answers.quality import Quality, is_exact
from efficient_attn.report.answers.questions import Question
from efficient_attn.report.answers.timing import Curve
from efficient_attn.results.rows import Record


def _swap(variant: str, loss: float, length: int = 1024, layer: int | None = None) -> Record:
    made = runs.row(
        variant, task="swap", inputs="model:text", seq_len=length, baseline="full", causal=True, layer=layer
    )
    made.extra = {"swap.loss": loss}
    return Record(made)


def test_perplexities_are_over_the_models_own_at_the_greatest_length(tmp_path: Path) -> None:
    records = [_swap("full", 2.0), _swap("linear", 2.5), _swap("full", 1.0, 4096), _swap("linear", 1.1, 4096)]
    records += [_swap("linear", 9.0, 4096, layer=3)]  # one layer alone is another question
    found = Quality.of(select.add_labels(gather.gather([runs.write_run(tmp_path, records)]).rows)).perplexity
    assert found["linear"].value == pytest.approx(math.exp(0.1))
    assert found["linear"].on == "model:text, 4,096 tokens"


def test_scores_are_by_task_and_of_what_was_asked_of_a_model(tmp_path: Path) -> None:
    asked = [  # by layer, so that neither supersedes the other
        Record(runs.row("linear", task="retrieval", inputs="model", seq_len=512, accuracy=share, layer=layer))
        for layer, share in enumerate((0.25, 0.75))
    ]
    records = [attempt("full", 0.9, task="mqar"), attempt("full", 0.8, "best", 1, task="mqar"), *asked]
    found = Quality.of(select.add_labels(gather.gather([runs.write_run(tmp_path, records)]).rows)).accuracy
    assert set(found) == {"mqar", "retrieval"}
    assert found["mqar"]["full"].value == pytest.approx(0.85)
    assert found["mqar"]["full"].on == "small models trained at length 64, 2 seeds"
    assert found["retrieval"]["linear"].value == 0.5


@pytest.mark.parametrize(
    ("variant", "kv_heads", "asked", "exact"),
    [
        ("full", 8, None, True),
        ("gqa", 2, None, False),
        ("gqa", 2, 2, True),
        ("gqa", 4, 2, False),
        ("linear", 8, 8, False),
    ],
)
def test_shared_keys_are_exact_for_a_model_that_shares_them(
    variant: str, kv_heads: int, asked: int | None, exact: bool
) -> None:
    curve = Curve(variant, kv_heads, {"variant": variant}, ())
    assert is_exact(curve, Question(seq_len=8, kv_heads=asked)) is exact
