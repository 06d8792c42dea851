"""Quality of mechanisms: perplexities, accuracies, and which mechanisms are exact for given requirements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import report_runs as runs
from learned_runs import attempt

from efficient_attn.report import gather, select
from efficient_attn.report.answers.cost_curves import CostCurve
from efficient_attn.report.answers.quality import Quality, is_exact
from efficient_attn.report.answers.requirements import Requirements
from efficient_attn.report.comparable_quality import QualityFigure
from efficient_attn.report.sections import mechanism_result
from efficient_attn.results.rows import Record


def _swap(variant: str, loss: float, length: int = 1024, layer: int | None = None) -> Record:
    made = runs.row(
        variant, task="swap", inputs="model:text", seq_len=length, baseline="full", causal=True, layer=layer
    )
    made.extra = {"swap.loss": loss}
    return Record(made)


def _read_quality(folder: Path, records: Iterable[Record]) -> Quality:
    return Quality(select.add_labels(gather.gather([runs.write_run(folder, records)]).rows))


def test_perplexities_are_ratios_in_separate_sets_by_length(tmp_path: Path) -> None:
    records = [_swap("full", 2.0), _swap("linear", 2.5), _swap("full", 1.0, 4096), _swap("linear", 1.1, 4096)]
    records += [_swap("linear", 9.0, 4096, layer=3)]  # one layer alone is another question
    sets = _read_quality(tmp_path, records).perplexity_ratios.sets
    ratios = {s.conditions.length: s.figures["linear"].value for s in sets}
    assert ratios == {1024: pytest.approx(math.exp(0.5)), 4096: pytest.approx(math.exp(0.1))}
    assert {s.figures["linear"].on for s in sets} == {"model, N = 1,024, causal", "model, N = 4,096, causal"}


def test_accuracies_of_trained_and_pretrained_models_by_task(tmp_path: Path) -> None:
    answers = [  # by layer, so that neither supersedes the other
        Record(runs.row("linear", task="retrieval", inputs="model", seq_len=512, accuracy=share, layer=layer))
        for layer, share in enumerate((0.25, 0.75))
    ]
    records = [attempt("full", 0.9, "given", task="mqar"), attempt("full", 0.8, "best", 1, task="mqar"), *answers]
    accuracies = _read_quality(tmp_path, records).accuracies
    assert set(accuracies) == {"mqar", "retrieval"}
    (trained,), (retrieved,) = accuracies["mqar"].sets, accuracies["retrieval"].sets
    assert trained.figures["full"].value == pytest.approx(0.85)
    assert trained.figures["full"].on == "small models, N = 64, causal, mean over 2 seeds"
    assert retrieved.figures["linear"].value == 0.5


@pytest.mark.parametrize(
    ("variant", "kv_heads", "required", "exact"),
    [
        ("full", 8, None, True),
        ("gqa", 2, None, False),
        ("gqa", 2, 2, True),
        ("gqa", 4, 2, False),
        ("gqa", 8, None, True),  # as many as query heads: plain attention
        ("sdpa_gqa", 2, 2, True),  # of a suite's plug-in, by torch's kernel
        ("sdpa_gqa", 2, None, False),
        ("bare_sdpa", 8, None, True),
        ("linear", 8, 8, False),
    ],
)
def test_shared_keys_are_exact_for_a_model_that_shares_them(
    variant: str, kv_heads: int, required: int | None, exact: bool
) -> None:
    curve = CostCurve(variant, kv_heads, variant, ())
    assert is_exact(curve, {"heads": 8}, Requirements(seq_len=8, kv_heads=required)) is exact


def test_figures_over_other_segments_are_not_compared(tmp_path: Path) -> None:
    records = [*_read("full", (1.0, 2.0, 3.0)), *_read("linear", (1.5, 2.5, 3.5)), *_read("cosformer", (1.1, 2.1))]
    sets = _read_quality(tmp_path, records).perplexity_ratios.sets
    specs = {s.conditions.aggregate: set(s.figures) for s in sets}
    assert specs == {"mean over 3 text segments": {"full", "linear"}, "mean over 2 text segments": {"cosformer"}}


def _read(variant: str, losses: Sequence[float]) -> Iterator[Record]:
    for segment, loss in enumerate(losses):
        record = _swap(variant, loss)
        record.row.extra["swap.segment"], record.row.case_key = segment, f"{variant}/{segment}"
        yield record


def test_a_perplexitys_interval_is_over_pairs_of_segments(tmp_path: Path) -> None:
    """The segments differ far more than what the mechanism adds to each."""
    records = [*_read("full", (1.0, 2.0, 3.0)), *_read("linear", (1.09, 2.1, 3.11))]
    (measured,) = _read_quality(tmp_path, records).perplexity_ratios.sets
    found = measured.figures["linear"]
    assert found.value == pytest.approx(math.exp(0.1))
    half = 4.3027 * 0.01 / math.sqrt(3)  # Student's t with two degrees of freedom
    assert (found.low, found.high) == pytest.approx((math.exp(0.1 - half), math.exp(0.1 + half)), rel=1e-4)


def test_accuracies_of_models_that_still_improve_are_left_out(tmp_path: Path) -> None:
    rising = attempt("linear", 0.9, "given", task="mqar", stop_reason=mechanism_result.STILL_IMPROVING)
    quality = _read_quality(tmp_path, [attempt("full", 0.9, "given", task="mqar"), rising])
    assert [set(measured.figures) for measured in quality.accuracies["mqar"].sets] == [{"full"}]


def test_scores_have_intervals_over_seeds_or_questions(tmp_path: Path) -> None:
    asked = Record(runs.row("full", task="retrieval", inputs="model", seq_len=512, accuracy=0.5))
    asked.row.extra = {"retrieval.accuracy_low": 0.4, "retrieval.accuracy_high": 0.6}
    several = [
        Record(runs.row("linear", task="retrieval", inputs="model", seq_len=512, accuracy=share, layer=layer))
        for layer, share in enumerate((0.25, 0.75))
    ]
    learned = [attempt("full", 0.9, "given", task="mqar"), attempt("full", 0.8, "best", 1, task="mqar")]
    records = [*learned, attempt("linear", 0.9, "given", task="mqar"), asked, *several]
    accuracies = _read_quality(tmp_path, records).accuracies
    ends = {
        (task, spec): (figure.low, figure.high)
        for task, measured in accuracies.items()
        for quality_set in measured.sets
        for spec, figure in quality_set.figures.items()
    }
    assert ends["retrieval", "full"] == (0.4, 0.6)
    assert ends["retrieval", "linear"] == (0.0, 1.0)  # of two so unlike: anything, but no more than all
    assert ends["mqar", "full"] == pytest.approx((0.85 - 12.706 * 0.05, 1.0), abs=1e-3)
    assert ends["mqar", "linear"] == (None, None)  # one seed


@pytest.mark.parametrize(
    ("ends", "least", "sure"),
    [
        ((0.93, 0.97), 0.93, True),  # the bound itself keeps it
        ((0.93, 0.97), 0.94, False),
        ((0.93, 0.97), 0.96, False),  # 0.95 does not keep it, 0.97 would
        ((0.93, 0.97), 0.97, False),
        ((0.93, 0.97), 0.98, True),  # surely not kept
        ((None, None), 0.94, None),
    ],
)
def test_a_value_is_uncertain_if_its_interval_contains_the_bound(
    ends: tuple[float | None, float | None], least: float, sure: bool | None
) -> None:
    found = QualityFigure("mqar", 0.95, "", low=ends[0], high=ends[1]).with_certainty(lambda value: value >= least)
    assert found.sure is sure
    assert found.format_uncertainty() == ("uncertain: 93.0%\u201397.0%" if sure is False else "")
