"""Selection of learning rates: ties, failed trainings, and open ends of the grid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.results.learning_rates import RateChoice, TriedRate, choose_rate


def _choose(*scores: float | None, error: float = 0.0) -> RateChoice | None:
    """Rates 1, 2, 4, ..."""
    return choose_rate([TriedRate(2.0**n, score, error) for n, score in enumerate(scores)])


@pytest.mark.parametrize(
    ("scores", "rate", "open_ends"),
    [
        ((0.1, 0.9, 0.5), 2, ()),
        ((0.1, 0.5, 0.9), 4, ("above",)),
        ((0.9, 0.5, 0.1), 1, ("below",)),
        ((0.9,), 1, ("above", "below")),
        ((0.9, 0.1, 0.9), 1, ("above", "below")),
        ((0.1, 0.9, None), 2, ()),  # training failed at the largest rate, which closes the grid
        ((None, 0.9, 0.1), 2, ()),
        ((None, 0.2, 0.9), 4, ("above",)),
        ((-2.3, -2.1, -2.2), 2, ()),  # bits, with their sign changed
    ],
)
def test_the_best_rate_is_inside_or_at_an_open_end(
    scores: tuple[float | None, ...], rate: float, open_ends: tuple[str, ...]
) -> None:
    assert _choose(*scores) == RateChoice(rate, open_ends)  # type: ignore[arg-type]


def test_a_tie_inside_the_grid_is_preferred() -> None:
    assert _choose(0.1, 0.88, 0.9, error=0.03) == RateChoice(2)
    assert _choose(0.1, 0.86, 0.9, error=0.03) == RateChoice(4, ("above",))


def test_the_larger_error_decides_on_a_tie() -> None:
    perfect = TriedRate(4, 1.0, 0.0)
    assert choose_rate([TriedRate(1, 0.5), TriedRate(2, 0.999, 0.002), perfect]) == RateChoice(2)
    assert choose_rate([TriedRate(1, 0.5), TriedRate(2, 0.990, 0.002), perfect]) == RateChoice(4, ("above",))


def test_nothing_is_selected_if_all_trainings_failed() -> None:
    assert _choose() is None
    assert _choose(None, None) is None


@given(st.lists(st.tuples(st.floats(1e-5, 0.5), st.one_of(st.none(), st.floats(0, 1)), st.floats(0, 0.1)), max_size=8))
def test_the_selected_rate_is_within_an_error_of_the_best(points: list[tuple[float, float | None, float]]) -> None:
    tried = [TriedRate(*point) for point in points]
    scores = [score for _, score, _ in tried if score is not None]
    choice = choose_rate(tried)
    assert (choice is None) == (not scores)
    if choice is not None:
        candidates = [x for x in tried if x.rate == choice.rate and x.score is not None]
        assert any(max(scores) - x.score <= max(e for *_, e in tried) for x in candidates if x.score is not None)
        inside = min(x.rate for x in tried) < choice.rate < max(x.rate for x in tried)
        assert inside == (not choice.open_ends)
