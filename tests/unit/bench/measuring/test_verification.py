"""Verification of mechanisms: errors in the fast implementation are detected in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import tiny_suites
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.measuring import verification
from efficient_attn.bench.measuring.output_comparison import check_call
from efficient_attn.bench.measuring.row_errors import TOLERANCE, InvalidResult
from efficient_attn.bench.measuring.samples import verify_workload
from efficient_attn.bench.measuring.workload import Workload

MODES = ("forward", "forward_backward", "decode", "prefill")


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def _verify(variant: str, mode: str, **axes: Any) -> float:
    return verify_workload(Workload(tiny_suites.case(variant, mode, **axes)))[0]


def _with_nan(out: Tensor) -> Tensor:
    out = out.clone()
    out[..., -1, 0] = float("nan")
    return out


FAULTS = {
    "scaled": (lambda out: out * 1.01, "differs from the reference"),
    "shifted": (lambda out: out + 0.1, "differs from the reference"),  # the gradient is correct
    "another dtype": (lambda out: out.double(), "float64"),
    "not a number": (_with_nan, "not finite"),
    "infinite": (lambda out: out + float("inf"), "not finite"),
    "another shape": (lambda out: out[..., :-1], r"\[1, 2, \d+, 7\]"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_outputs_are_detected(fault: str, mode: str) -> None:
    twist, message = FAULTS[fault]
    with pytest.raises(InvalidResult, match=message):
        _verify(tiny_suites.register_modified("zz_faulty", twist), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", ["full", "linear", "sliding_window:window=3", "mqa", "full:backend=dense"])
@pytest.mark.parametrize("causal", [False, True])
def test_correct_outputs_pass_with_a_small_error(variant: str, mode: str, causal: bool) -> None:
    assert 0 <= _verify(variant, mode, causal=causal) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mode", MODES)
def test_correct_outputs_are_within_the_tolerance_of_each_dtype(dtype: str, mode: str) -> None:
    assert _verify("full", mode, dtype=dtype) <= TOLERANCE[dtype]


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 1.1


def test_wrong_gradients_are_detected_despite_correct_outputs() -> None:
    name = tiny_suites.register_modified("zz_gradient", _WrongGradient.apply)
    assert _verify(name, "forward") < 1e-5
    with pytest.raises(InvalidResult):
        _verify(name, "forward_backward")


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_wrong_decode_steps_are_detected_despite_a_correct_forward(mode: str) -> None:
    name = tiny_suites.register_modified("zz_step", advance=lambda out: out * 1.01)
    assert _verify(name, "forward") < 1e-5
    with pytest.raises(InvalidResult):
        _verify(name, mode)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(2047, 2048), slice(3, None, 16), slice(1200, 1400)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_long_outputs_are_compared_at_both_ends_and_in_between(rows: slice, causal: bool) -> None:
    def twist(out: Tensor) -> Tensor:
        out = out.clone()
        out[:, :, rows] *= 1.5
        return out

    with pytest.raises(InvalidResult):
        _verify(tiny_suites.register_modified("zz_row", twist), "forward", seq_len=2048, causal=causal)


@pytest.mark.parametrize("traits", [ea.Traits(cross=False), ea.Traits(mixes_queries=True)])
def test_mechanisms_without_separable_rows_are_compared_whole(
    traits: ea.Traits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are compared at the timed length, or at the longest length that the reference implementation can afford."""
    monkeypatch.setattr(verification, "MAX_WHOLE_PAIRS", 2 * 100**2)
    lengths: list[int] = []

    def twist(out: Tensor) -> Tensor:
        lengths.append(out.shape[2])
        return out

    whole, wrong = tiny_suites.register_modified("zz_whole", twist, traits=traits), lambda out: out * 1.01
    for seq_len, compared in ((90, 90), (100, 100), (200, 100)):
        error, length = verify_workload(Workload(tiny_suites.case(whole, seq_len=seq_len)))
        assert (error < 1e-5, length) == (True, compared)
        with pytest.raises(InvalidResult):
            _verify(
                tiny_suites.register_modified(f"zz_wrong_{seq_len}", wrong, traits=traits), "forward", seq_len=seq_len
            )
    assert lengths == [90, 90, 100, 100, 200, 200, 100]  # two calls, whose results must not share their memory


def test_attention_to_future_positions_is_detected() -> None:
    class Leaks(ea.SoftmaxAttention):
        """Exact attention that ignores `causal`."""

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            return super().compute(q, k, v, ea.Mask(), **inputs)

    ea.register("zz_leaks", family="full")(Leaks)
    assert _verify("zz_leaks", "forward", causal=False) < 1e-5
    with pytest.raises(InvalidResult):
        _verify("zz_leaks", "forward", causal=True)


def test_the_error_contains_the_distance_and_the_tolerance() -> None:
    with pytest.raises(InvalidResult, match=r"relative error 1\.00e-02, allowed 1e-04"):
        _verify(tiny_suites.register_modified("zz_how_far", lambda out: out * 1.01), "forward")


class _Long(ea.SoftmaxAttention):
    """Exact attention that refuses fewer than 300 positions and scales gradients by 1.1."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        if k.shape[2] < 300:
            raise ea.UnsupportedError("too short")
        return _WrongGradient.apply(super().compute(q, k, v, mask, **inputs))


def test_gradients_are_compared_at_a_supported_length() -> None:
    ea.register("zz_long", family="full")(_Long)
    assert _verify("zz_long", "forward", seq_len=400) < 1e-5
    with pytest.raises(InvalidResult):
        _verify("zz_long", "forward_backward", seq_len=400)


@pytest.mark.parametrize(("pairs", "length"), [(2 * 350**2, 256), (2 * 400**2, 400), (2 * 100**2, 100)])
def test_shorter_lengths_are_powers_of_two_unless_all_fits(pairs: int, length: int) -> None:
    assert verification.find_affordable_length(400, 2, pairs) == length


def test_gradients_of_one_batch_row_are_compared_as_a_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole batch is affordable only at lengths that the mechanism refuses."""
    ea.register("zz_long", family="full")(_Long)
    monkeypatch.setattr(verification, "supports_rows", lambda _: False)
    monkeypatch.setattr(verification, "MAX_PAIRS_PER_ROUND", 4 * 2 * 128**2)
    small = Workload(tiny_suites.case("zz_long", "forward_backward", seq_len=400, batch=4))
    with pytest.raises(InvalidResult, match="gradient"):
        verification._check_small_gradients(small, Random(0))
    monkeypatch.setattr(verification, "MAX_GRADIENT_PAIRS", 2 * 400**2 - 1)
    with pytest.raises(ea.UnsupportedError, match="too short"):
        verification._check_small_gradients(small, Random(0))


def test_a_reference_that_needs_consecutive_queries_computes_row_by_row() -> None:
    sizes: list[int] = []

    class Consecutive(ea.SoftmaxAttention):
        """Exact attention whose reference uses the start of its queries."""

        def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            start = mask.start(q.shape[2], k.shape[2])
            sizes.append(q.shape[2])
            return super().oracle(q, k, v, ea.Mask(causal=mask.causal, query_start=start), **inputs)

    ea.register("zz_consecutive", family="full")(Consecutive)
    w = Workload(tiny_suites.case("zz_consecutive", seq_len=500, causal=True))
    assert check_call(w, w.sample, (w.forward(w.sample),), Random(0)) < 1e-5
    assert sizes == [1] * 96
    wrong = w.forward(w.sample)
    wrong[:, :, 1::2] *= 1.01
    with pytest.raises(InvalidResult, match="relative error"):
        check_call(w, w.sample, (wrong,), Random(0))


@torch.no_grad()
def test_rounding_of_a_weight_that_is_nearly_zero_is_no_error() -> None:
    """A first row has a single key, whose weight in retention is a scalar product of both signs."""
    errors = []
    w = Workload(tiny_suites.case("retention", seq_len=3, causal=True, batch=1024, heads=4, head_dim=64))
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        for x in (w.sample.q, w.sample.k, w.sample.v):
            x.normal_(generator=generator)
        results = [w.forward(w.sample)]
        check_call(w, w.sample, results, Random(seed))
        expected = w.oracle(w.sample.q, w.sample.k, w.sample.v, w.mask)
        errors.append(float(((results[0] - expected).norm(dim=-1) / expected.norm(dim=-1)).max()))
    assert max(errors) > TOLERANCE["float32"]
