"""Rules of layers: which layers they replace, at limits on either side of each change."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.errors import NotNeeded
from efficient_attn.tasks.hybrid.layer_rules import LayerEffects, choose_layers, format_layers, place_own_layers

# alone, layer 2 costs nothing and layer 0 most; the greedy order is 2, 3, 1, 0
EFFECTS = LayerEffects(single=(0.05, 0.004, -0.001, 0.006), steps=((2, -0.001), (3, 0.0), (1, 0.015), (0, 0.2)))


@pytest.mark.parametrize(
    ("limit", "greedy", "linear"),
    [
        (0.001, (2, 3), (2,)),
        (0.01, (2, 3), (1, 2, 3)),
        (0.016, (1, 2, 3), (1, 2, 3)),
        (0.5, (0, 1, 2, 3), (0, 1, 2, 3)),
    ],
)
def test_layers_are_replaced_as_long_as_the_limit_holds(
    limit: float, greedy: tuple[int, ...], linear: tuple[int, ...]
) -> None:
    assert choose_layers("greedy", EFFECTS, limit) == greedy
    assert choose_layers("linear", EFFECTS, limit) == linear
    assert math.exp(dict(EFFECTS.steps[len(greedy) - 1 : len(greedy)]).popitem()[1]) <= 1 + limit
    assert math.exp(EFFECTS.predict(linear)) <= 1 + limit


def test_a_later_layer_may_bring_the_change_back_within_the_limit() -> None:
    effects = LayerEffects(single=(0.0, 0.0, 0.0), steps=((1, 0.03), (0, 0.005), (2, 0.4)))
    assert choose_layers("greedy", effects, 0.01) == (0, 1)


def test_nothing_to_replace_is_reported() -> None:
    effects = LayerEffects(single=(0.3, 0.4), steps=((0, 0.3), (1, 0.9)))
    for rule in ("greedy", "linear", "spaced", "ends"):
        with pytest.raises(NotNeeded, match="no layer can be replaced with a perplexity within 1%"):
            choose_layers(rule, effects, 0.01)
    assert choose_layers("everywhere", effects, None) == (0, 1)


@pytest.mark.parametrize(
    ("layers", "count", "spaced", "ends"),
    [
        (8, 1, [4], [0]),
        (8, 2, [2, 6], [0, 7]),
        (30, 3, [5, 15, 25], [0, 1, 29]),
        (5, 5, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        (5, 0, [], []),
    ],
)
def test_places_of_own_layers(layers: int, count: int, spaced: list[int], ends: list[int]) -> None:
    assert place_own_layers("spaced", layers, count) == spaced
    assert place_own_layers("ends", layers, count) == ends


@given(st.integers(1, 80), st.data())
def test_own_layers_are_as_many_as_requested_and_spaced_ones_evenly(layers: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, layers))
    for rule in ("spaced", "ends"):
        own = place_own_layers(rule, layers, count)
        assert len(set(own)) == count
        assert own == sorted(own)
        assert set(own) <= set(range(layers))
    gaps = [b - a for a, b in pairwise(place_own_layers("spaced", layers, count))]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_rules_without_measurements_replace_as_many_layers_as_the_greedy_one() -> None:
    assert choose_layers("spaced", EFFECTS, 0.01) == (0, 2)  # layers 1 and 3 keep their own
    assert choose_layers("ends", EFFECTS, 0.01) == (1, 2)
    assert choose_layers("uniform", EFFECTS, 0.01) == (0, 1, 2, 3)


def test_they_may_replace_as_many_as_the_linear_rule() -> None:
    alone = LayerEffects(single=EFFECTS.single, steps=EFFECTS.steps[:1])  # without a greedy search
    assert choose_layers("spaced", alone, 0.01, counted_by="linear") == (0, 1, 3)  # layer 2 keeps its own
    assert choose_layers("ends", alone, 0.01, counted_by="linear") == (1, 2, 3)


def test_layers_are_written_as_ranges() -> None:
    assert format_layers((0, 1, 2, 5, 7, 8)) == "0-2 5 7-8"
    assert format_layers(()) == "none"
