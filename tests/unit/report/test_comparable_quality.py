"""Sets of comparable qualities: which one an answer uses, and which specs count as the same."""

from __future__ import annotations

import math

import pytest

from efficient_attn.report.comparable_quality import (
    MeasuredQuality,
    QualityConditions,
    QualityFigure,
    QualitySet,
    compute_option_difference,
)


def _make_set(inputs: str, length: int | None, causal: bool | None, **figures: float) -> QualitySet:
    values = {spec: QualityFigure("error", value, "") for spec, value in figures.items()}
    return QualitySet(QualityConditions(inputs, length, causal, dtype="float32"), values)


def _choose(*sets: QualitySet, length: int, causal: bool = True, specs: tuple[str, ...] = ("a", "b", "c")):
    return MeasuredQuality(sets).choose(specs, length=length, causal=causal, dtype="float32")


@pytest.mark.parametrize(
    ("spec", "other", "difference"),
    [
        ("sliding_window:window=512", "sliding_window:window=512", 0.0),
        ("sliding_window:window=512", "sliding_window:window=508", 4 / 512),
        ("sliding_window:window=100", "sliding_window:window=98", 0.02),
        ("longformer:n_global=64:window=128", "longformer:n_global=63:window=128", 1 / 64),
        ("longformer:n_global=64:window=128", "longformer:window=127:n_global=64", 1 / 128),
        ("linear:eps=1e-6", "linear:eps=1.01e-6", 0.01 / 1.01),
        ("a:x=100|b:y=3", "b:y=3|a:x=99", 0.01),
        ("sliding_window:window=512", "dilated_window:window=512", math.inf),
        ("sliding_window:window=512", "sliding_window", math.inf),
        ("sliding_window:window=512", "sliding_window:dilation=1:window=512", math.inf),
        ("performer:kind=positive", "performer:kind=trigonometric", math.inf),
        ("random_feature:gated=true:n=64", "random_feature:gated=false:n=64", math.inf),
        ("linear:power=1", "linear:power=-1", 2.0),
        ("linear:power=0", "linear:power=0.001", 1.0),
        ("not a spec:", "not a spec:", 0.0),
        ("not a spec:", "nor this:", math.inf),
    ],
)
def test_specs_differ_by_their_largest_numeric_option(spec: str, other: str, difference: float) -> None:
    assert compute_option_difference(spec, other) == pytest.approx(difference)
    assert compute_option_difference(other, spec) == pytest.approx(difference)


def test_the_nearest_spec_within_two_percent_is_found() -> None:
    measured = _make_set("m", 8, True, **{"w:n=98": 1.0, "w:n=99": 2.0, "w:n=97": 3.0})
    for spec, expected in {"w:n=99": ("w:n=99", 2.0), "w:n=100": ("w:n=99", 2.0), "w:n=96": ("w:n=97", 3.0)}.items():
        found = measured.find(spec)
        assert found is not None
        assert (found[0], found[1].value) == expected
    assert measured.find("w:n=110") is None


@pytest.mark.parametrize(
    ("length", "causal", "chosen"),
    [
        (4096, True, "most at 2,048"),  # both verify; it has more mechanisms
        (4097, True, "few at 8,192"),  # 2,048 is less than half
        (16384, True, "few at 8,192"),
        (512, True, "most at 2,048"),  # longer ones verify as well
        (768, False, "encoder at 384"),
    ],
)
def test_the_set_with_most_mechanisms_among_those_that_verify(length: int, causal: bool, chosen: str) -> None:
    sets = [
        _make_set("few at 8,192", 8192, True, a=1.0, b=1.0),
        _make_set("most at 2,048", 2048, True, a=1.0, b=1.0, c=1.0),
        _make_set("encoder at 384", 384, False, a=1.0, b=1.0, c=1.0),
    ]
    for order in (sets, sets[::-1]):
        choice = _choose(*order, length=length, causal=causal)
        assert choice.chosen is not None
        assert (choice.chosen.conditions.inputs, choice.verified) == (chosen, True)


def test_a_more_complete_set_is_used_before_a_nearer_one() -> None:
    sets = [_make_set("near", 2048, True, a=1.0), _make_set("complete", 8192, True, a=1.0, b=1.0)]
    choice = _choose(*sets, length=2048)
    assert choice.chosen is not None
    assert choice.chosen.conditions.inputs == "complete"


def test_of_equally_complete_sets_the_nearest_length_is_used() -> None:
    sets = [_make_set(f"m{n}", n, True, a=1.0) for n in (1024, 2048, 8192)]
    lengths = {n: _choose(*sets, length=n).chosen for n in (1024, 1500, 2048, 4096, 9000)}
    assert {n: chosen and chosen.conditions.length for n, chosen in lengths.items()} == {
        1024: 1024,
        1500: 2048,
        2048: 2048,
        4096: 8192,  # as near as 2,048: the longer one
        9000: 8192,
    }


def test_without_a_set_that_verifies_the_longest_of_the_direction_is_shown() -> None:
    sets = [
        _make_set("short", 384, True, a=1.0, b=1.0, c=1.0),
        _make_set("long", 2048, True, a=1.0),
        _make_set("encoder", 4096, False, a=1.0, b=1.0),
    ]
    choice = _choose(*sets, length=8192)
    assert choice.chosen is not None
    assert (choice.chosen.conditions.inputs, choice.verified, choice.longest) == ("long", False, 2048)
    assert choice.describe_unverified("b") == "not verified at 8,192 (measured at 384, causal, in short)"
    assert choice.describe_unverified("d") == "not verified at 8,192 (not measured)"
    encoder = _choose(sets[2], length=8192)
    assert encoder.longest is None
    assert encoder.describe_unverified("a") == "not verified at 8,192 (measured at 4,096, bidirectional, in encoder)"


@pytest.mark.parametrize(("length", "causal"), [(None, True), (8192, None)])
def test_unknown_conditions_verify_nothing(length: int | None, causal: bool | None) -> None:
    assert not _choose(_make_set("m", length, causal, a=1.0), length=16).verified


def test_exactness_at_a_shorter_length_verifies_nothing() -> None:
    """A window of 2,048 is exact in 2,048 tokens, not in 4,096."""
    measured = _make_set("m", 2048, True, a=0.0)
    exact = {n: _choose(measured, length=n).verifies(exact=True) for n in (1024, 2048, 2049, 4096)}
    assert exact == {1024: True, 2048: True, 2049: False, 4096: False}
    assert _choose(measured, length=4096).verifies(exact=False)
    assert not _choose(measured, length=4097).verifies(exact=False)


def test_conditions_are_described_in_one_form() -> None:
    conditions = QualityConditions("minilm@d181760f", 384, False, (0, 2, 5))
    assert conditions.describe() == "MiniLM, N = 384, bidirectional, mean over 3 layers"
    assert QualityConditions("smollm2:sotu@1", 8192, True, (0,), "text segment").describe() == (
        "SmolLM2-135M, N = 8,192, causal, 1 text segment"
    )
    assert QualityConditions("mine@1").describe() == "mine"
    assert QualityConditions(None).describe() == "inputs that are not named"
