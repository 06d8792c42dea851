"""Mechanisms left out because of a neighbour of about the same cost and clearly better quality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from efficient_attn.report.answers.better_neighbours import Competitor, find_better_neighbours, is_clearly_better
from efficient_attn.report.answers.quality import EXACT_FIGURES
from efficient_attn.report.comparable_quality import QualityConditions, QualityFigure

TEXTS = QualityConditions("smollm2:text@4", 8192, True, (0, 1, 2), "text segment")
WINDOW, SINKS, WIDE = "sliding_window:window=128", "attention_sinks:n_sink=4:window=128", "sliding_window:window=512"


def _perplexity(*ratios: float) -> QualityFigure:
    logs = tuple(map(math.log, ratios))
    value = math.exp(sum(logs) / len(logs))
    return QualityFigure("perplexity", value, f"{value:.2f}x the perplexity", TEXTS, log_ratios=logs)


def _accuracy(value: float, half_width: float | None) -> QualityFigure:
    ends = (None, None) if half_width is None else (value - half_width, value + half_width)
    return QualityFigure("mqar", value, f"{value:.1%} of mqar", QualityConditions("small models"), (), *ends)


def _competitor(label: str, time: float, *figures: QualityFigure, state: float | None = None) -> Competitor:
    costs = {"time": time} if state is None else {"time": time, "state": state}
    return Competitor(label, costs, {figure.metric: figure for figure in figures})


def _find(*competitors: Competitor) -> dict[str, str]:
    """Who is left out, and because of whom."""
    found = find_better_neighbours(competitors)
    return {c.label: x.neighbour.label for c, x in zip(competitors, found, strict=True) if x is not None}


def test_a_neighbour_of_the_same_cost_with_clearly_better_perplexity() -> None:
    window = _competitor(WINDOW, 1.0, _perplexity(1.7, 1.8, 1.9))
    sinks = _competitor(SINKS, 1.02, _perplexity(1.05, 1.06, 1.07))
    better, kept = find_better_neighbours([window, sinks])
    assert kept is None
    assert better is not None
    assert better.describe() == (
        f"{SINKS} has 1.02x its time and 1.06x instead of 1.80x the perplexity "
        "(SmolLM2-135M, N = 8,192, causal, mean over 3 text segments)"
    )


@pytest.mark.parametrize(
    ("time", "state", "left_out"), [(1.1, 1.1, True), (1.11, 1.0, False), (1.0, 1.11, False), (0.5, math.nan, False)]
)
def test_each_cost_is_at_most_a_tenth_more(time: float, state: float, left_out: bool) -> None:
    window = _competitor(WINDOW, 1.0, _perplexity(1.7, 1.8, 1.9), state=1.0)
    sinks = _competitor(SINKS, time, _perplexity(1.05, 1.06, 1.07), state=state)
    assert bool(_find(window, sinks)) is left_out


@pytest.mark.parametrize(
    ("ratios", "others", "better"),
    [
        ((1.05, 1.15, 1.25), (1.1, 1.2, 1.3), True),  # the segments differ more than the mechanisms
        ((1.0, 1.2, 1.1), (1.05, 1.1, 1.2), False),  # the difference is within the noise
        ((1.1, 1.1, 1.1), (1.115, 1.115, 1.115), False),  # less than 2%
        ((1.1, 1.1, 1.1), (1.13, 1.13, 1.13), True),
        ((1.1,), (5.0,), False),  # one segment has no interval
        ((1.1, 1.1), (5.0, 5.0, 5.0), False),  # other segments
        ((), (), False),  # rows without segments
    ],
)
def test_perplexities_are_compared_in_the_same_segments(
    ratios: Sequence[float], others: Sequence[float], better: bool
) -> None:
    figures = [_perplexity(*x) if x else QualityFigure("perplexity", 1.5, "", TEXTS) for x in (ratios, others)]
    assert is_clearly_better(*figures) is better
    assert not is_clearly_better(*reversed(figures))


def test_exact_attention_is_compared_with_all_segments() -> None:
    exact = EXACT_FIGURES["perplexity"]
    assert is_clearly_better(exact, _perplexity(1.1, 1.12, 1.14))
    assert not is_clearly_better(exact, _perplexity(1.0, 1.01, 1.02))
    assert not is_clearly_better(exact, replace(exact))


@pytest.mark.parametrize(
    ("better", "worse", "expected"),
    [
        (_accuracy(0.9, 0.05), _accuracy(0.7, 0.05), True),
        (_accuracy(0.9, 0.15), _accuracy(0.7, 0.15), False),
        (_accuracy(0.9, None), _accuracy(0.7, None), False),  # one seed
        (_accuracy(0.91, 0.001), _accuracy(0.9, 0.001), False),
    ],
)
def test_accuracies_need_intervals_that_do_not_overlap(
    better: QualityFigure, worse: QualityFigure, expected: bool
) -> None:
    assert is_clearly_better(better, worse) is expected
    assert not is_clearly_better(worse, better)


def test_errors_leave_nothing_out() -> None:
    """Those of a few layers are no sample of which an interval could be estimated."""
    low, high = (QualityFigure("error", x, "", low=x, high=x, layer_errors=(x, x)) for x in (0.1, 0.9))
    assert not is_clearly_better(low, high)
    assert not _find(_competitor("linear", 1.0, high), _competitor(WINDOW, 1.0, low), _competitor("full", 1.0))


def test_a_mechanism_that_is_left_out_replaces_no_other() -> None:
    """Otherwise several steps of 1.1 would add up."""
    good, fair, bad = (_perplexity(*[x, x, x]) for x in (1.1, 1.5, 3.0))
    steps = [_competitor("linear", 1.0, bad), _competitor(WINDOW, 1.09, fair), _competitor(WIDE, 1.18, good)]
    for order in (steps, steps[::-1]):
        assert _find(*order) == {WINDOW: WIDE}


def test_a_mechanism_that_is_clearly_better_otherwise_is_kept() -> None:
    window = _competitor(WINDOW, 1.0, _perplexity(1.8, 1.8, 1.8), _accuracy(0.9, 0.01))
    sinks = _competitor(SINKS, 1.0, _perplexity(1.1, 1.1, 1.1), _accuracy(0.5, 0.01))
    assert not _find(window, sinks)
    assert _find(window, replace(sinks, figures={"perplexity": _perplexity(1.1, 1.1, 1.1)})) == {WINDOW: SINKS}


def test_a_similar_spec_that_was_measured_is_named() -> None:
    window = _competitor(WINDOW, 1.0, _perplexity(1.8, 1.8, 1.8))
    near = replace(_perplexity(1.1, 1.1, 1.1), measured_spec="attention_sinks:n_sink=4:window=127")
    better, _ = find_better_neighbours([window, _competitor(SINKS, 1.0, near)])
    assert better is not None
    assert (
        "1.10x measured with attention_sinks:n_sink=4:window=127 instead of 1.80x the perplexity" in better.describe()
    )


@pytest.mark.parametrize("time", [0.0, math.nan, math.inf])
def test_unusual_costs_are_no_error(time: float) -> None:
    found = find_better_neighbours(
        [_competitor(WINDOW, time, _perplexity(9, 9, 9)), _competitor(SINKS, time, _perplexity(1, 1, 1))]
    )
    for better in filter(None, found):
        assert better.describe()
    assert find_better_neighbours([]) == []
