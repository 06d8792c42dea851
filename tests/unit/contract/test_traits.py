"""Descriptions of traits."""

from __future__ import annotations

from dataclasses import fields

import pytest

import efficient_attn as ea
from efficient_attn.contract.traits import PROMISES


def test_meanings_describe_all_flags_for_both_values() -> None:
    flags = {f.name for f in fields(ea.Traits) if f.default is True or f.default is False}
    for value in (True, False):
        meanings = ea.Traits(**dict.fromkeys(flags, value)).meanings()
        assert meanings.keys() == flags
        assert all(claimed is value and text for claimed, text in meanings.values())
    assert set(PROMISES) <= flags


def test_unclaimed_lists_traits_that_are_off() -> None:
    assert ea.Traits().unclaimed == ()
    assert ea.Traits(decode=False, exact=False, positional=True).unclaimed == ("no decoding",)
    assert ea.Traits(padding=False, deterministic=False).unclaimed == ("no padding", "no bits that repeat")


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_a_tolerance_of_states_is_a_share(tolerance: float) -> None:
    with pytest.raises(ea.UsageError, match="state_tolerance is a relative error from 0 to 1"):
        ea.Traits(state_tolerance=tolerance)
