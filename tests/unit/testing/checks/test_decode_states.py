"""Lossy decode states, which pass only within the declared tolerance."""

from __future__ import annotations

from typing import Any

import pytest
from lossy_mechanism import Int8Cache
from toy_mechanisms import Toy, make

import efficient_attn as ea
from efficient_attn.testing import CHECKS, Outcome, Subject, run_check
from efficient_attn.testing.checks import call_context, decode_states, decoding

DECODING = [check for check in CHECKS if "decode" in check.needs or check.name == "autocast"]


def run(check: Any, cls: type[Toy]) -> Outcome:
    return run_check(check, Subject(lambda dims, seed, backend: cls()))


@pytest.mark.slow
@pytest.mark.parametrize("check", DECODING, ids=lambda c: c.name)
def test_an_int8_cache_passes_with_its_tolerance(check: Any) -> None:
    outcome = run(check, Int8Cache)
    assert outcome.status != "failed", outcome.reason


@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
def test_an_int8_cache_fails_without_its_tolerance(tolerance: float) -> None:
    for check in (
        decoding.decode_equals_forward,
        decoding.decode_past_two_laps,
        decode_states.long_batches,
        call_context.autocast,
    ):
        outcome = run(check, make(Int8Cache, state_tolerance=tolerance))
        assert outcome.status == "failed"
        assert "off by" in outcome.reason


def test_a_lossy_state_is_described() -> None:
    assert ea.Traits().describe_lossy_state() is None
    assert "relative errors of up to 0.05" in str(Int8Cache.claims.describe_lossy_state())
