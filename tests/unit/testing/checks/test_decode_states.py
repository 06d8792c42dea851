"""Lossy decode states, which pass only within the declared tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lossy_mechanism import Int8Cache, Quantized
from torch import Tensor
from toy_mechanisms import Toy, make

import efficient_attn as ea
from efficient_attn.contract.decode_state import cache_dtype
from efficient_attn.testing import CHECKS, Outcome, Subject, run_check
from efficient_attn.testing.checks import call_context, decode_states, decoding

DECODING = [check for check in CHECKS if "decode" in check.needs or check.name in ("autocast", "scores_far_below_zero")]


def run(check: Any, cls: type[Toy]) -> Outcome:
    return run_check(check, Subject(lambda dims, seed, backend: cls()))


@pytest.mark.slow
@pytest.mark.parametrize("check", DECODING, ids=lambda c: c.name)
@pytest.mark.sampled(4)
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


@pytest.mark.parametrize(
    ("dims", "found"),
    [((0,), "row 0 of 3, beside a row a hundred times larger"), ((2,), "positions 9 and 10 in a step")],
)
def test_a_scale_that_rows_or_positions_share_is_found(
    dims: tuple[int, ...], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the tolerance for numbers of one size, and wrong beside larger ones."""

    def write(self: Quantized, first: int, x: Tensor) -> None:
        scale = x.abs().amax(-1, keepdim=True).amax(dims, keepdim=True).expand(*x.shape[:3], 1).float() / 127
        self.rows[:, :, first : first + x.shape[2]] = (x / scale).round().to(torch.int8)
        self.scales[:, :, first : first + x.shape[2]] = scale

    monkeypatch.setattr(Quantized, "write", write)
    assert run(decoding.decode_equals_forward, make(Int8Cache, state_tolerance=0.1)).status == "passed"
    outcome = run(decode_states.independent_steps, make(Int8Cache, state_tolerance=0.1))
    assert outcome.status == "failed"
    assert found in outcome.reason


def test_integer_keys_are_not_the_dtype_of_autocast() -> None:
    """A quantised cache may call its tensor ``keys``, as `KVCache` does."""

    @dataclass(frozen=True)
    class Plain:
        keys: Tensor

    assert cache_dtype(Plain(torch.zeros(1, dtype=torch.int8))) is None
    assert cache_dtype(Plain(torch.zeros(1, dtype=torch.bfloat16))) == torch.bfloat16


def test_a_lossy_state_is_described() -> None:
    assert ea.Traits().describe_lossy_state() is None
    assert "relative errors of up to 0.05" in str(Int8Cache.claims.describe_lossy_state())
