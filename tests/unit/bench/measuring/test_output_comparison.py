"""Gradients of long calls: contributions of some rows are compared with the reference implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny_suites
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.measuring import output_comparison
from efficient_attn.bench.measuring.output_comparison import InvalidResult, check_gradients
from efficient_attn.bench.measuring.samples import make_timed, verify_workload
from efficient_attn.bench.measuring.workload import Workload

LONG = 300


@pytest.fixture(autouse=True)
def _small_reference_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit the reference implementation to 256 positions of 2 heads."""
    monkeypatch.setattr(output_comparison, "MAX_PAIRS_PER_ROUND", 2 * 256**2)
    with tiny_suites.isolated_registry():
        yield


def _train(variant: str, seq_len: int = LONG, **axes: Any) -> Workload:
    return Workload(tiny_suites.case(variant, "forward_backward", seq_len=seq_len, **axes))


@pytest.mark.parametrize("variant", ["full", "linear", "sliding_window:window=7", "mqa", "retention", "linformer"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("fill", ["full", "half", "packed"])
def test_correct_gradients_pass_with_a_small_error(variant: str, causal: bool, fill: str) -> None:
    batch = 1 if fill == "full" else 4
    try:
        w = _train(variant, causal=causal, fill=fill, batch=batch)
        results = w.forward_backward(w.sample)
    except ea.UnsupportedError:
        pytest.skip("not supported")
    assert output_comparison.dense_pairs(w) > output_comparison.MAX_PAIRS_PER_ROUND
    assert 0 < check_gradients(w, w.sample, results) < 2e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("seq_len", [LONG, 3000])
def test_half_precision_errors_are_below_half_the_tolerance(dtype: str, seq_len: int) -> None:
    w = _train("full", seq_len, dtype=dtype)
    assert check_gradients(w, w.sample, w.forward_backward(w.sample)) < 0.5 * output_comparison.TOLERANCE[dtype]


class _Twist(torch.autograd.Function):
    """Identity with a modified gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, twist: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.twist = twist
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.twist(grad), None


class Planted(ea.SoftmaxAttention):
    """Exact attention with a fault in the gradient of its keys or values, above 256 positions."""

    fault: Callable[[Planted, Tensor], Tensor]
    of = "k"

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.kept = 0, {}

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        if k.shape[2] > 256:
            twist = lambda grad: type(self).fault(self, grad)  # noqa: E731
            k, v = (_Twist.apply(k, twist), v) if self.of == "k" else (k, _Twist.apply(v, twist))
        return super().compute(q, k, v, mask)


def _keep_first(self: Planted, grad: Tensor) -> Tensor:
    return self.kept.setdefault("grad", grad)


def _skip_after_verification(self: Planted, grad: Tensor) -> Tensor:
    self.calls += 1
    return grad if self.calls <= 6 else torch.zeros_like(grad)


def _drop_some(self: Planted, grad: Tensor) -> Tensor:
    grad = grad.clone()
    grad[:, :, : grad.shape[2] // 8] = 0
    return grad


FAULTS = {
    "scaled": lambda self, grad: grad * 1.01,
    "zero": lambda self, grad: torch.zeros_like(grad),
    "kept": _keep_first,
    "skipped later": _skip_after_verification,
    "some dropped": _drop_some,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("of", ["k", "v"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("traits", [ea.Traits(), ea.Traits(mixes_queries=True)], ids=["rows", "whole"])
def test_wrong_gradients_of_keys_or_values_are_detected(fault: str, of: str, traits: ea.Traits) -> None:
    if traits.mixes_queries and fault not in ("kept", "skipped later"):
        pytest.skip("a new instance makes the same mistake, which only the shorter length could show")
    members = {"fault": FAULTS[fault], "of": of, "traits": traits, "__doc__": Planted.__doc__}
    ea.register("zz_planted", family="full")(type("Twisted", (Planted,), members))
    w = _train("zz_planted")
    subject = make_timed(w, seed=0)

    def verify_samples() -> None:
        verify_workload(w)
        for _ in range(8):
            subject.reset(2)
            subject.run(2)
            subject.verify()
            subject.run.__self__.gradients_verified = False  # pyright: ignore

    with pytest.raises(InvalidResult, match="gradient"):
        verify_samples()
    members["fault"] = lambda self, grad: grad
    ea.register("zz_honest", family="full")(type("Honest", (Planted,), members))
    w = _train("zz_honest")
    subject = make_timed(w, seed=0)
    verify_samples()


def test_compared_rows_are_distinct_at_every_length() -> None:
    for n in range(1, 300):
        rows = [i for block in output_comparison.list_rows(n) for i in range(block.start, block.stop)]
        assert len(rows) == len(set(rows)) == min(n, 96)
        assert {0, n - 1} <= set(rows) <= set(range(n))
