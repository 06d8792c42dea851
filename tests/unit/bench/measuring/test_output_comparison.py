"""Outputs and gradients of long calls are compared with the reference implementation on drawn rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import tiny_suites
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.measuring import output_comparison
from efficient_attn.bench.measuring.output_comparison import (
    check_call,
    check_gradients,
    check_repeated,
    draw_cut,
    draw_rows,
)
from efficient_attn.bench.measuring.row_errors import TOLERANCE, InvalidResult
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
    assert 0 < check_gradients(w, w.sample, results, Random(1)) < 2e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("seq_len", [LONG, 3000])
def test_half_precision_errors_are_below_half_the_tolerance(dtype: str, seq_len: int) -> None:
    w = _train("full", seq_len, dtype=dtype)
    assert check_gradients(w, w.sample, w.forward_backward(w.sample), Random(1)) < 0.5 * TOLERANCE[dtype]


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
            subject.run.__self__.wholly_verified = False  # pyright: ignore

    with pytest.raises(InvalidResult, match="gradient"):
        verify_samples()
    members["fault"] = lambda self, grad: grad
    ea.register("zz_honest", family="full")(type("Honest", (Planted,), members))
    w = _train("zz_honest")
    subject = make_timed(w, seed=0)
    verify_samples()


# -- drawn rows -----------------------------------------------------------------------------------------------------


def test_compared_rows_are_drawn_singly_from_all() -> None:
    for n in (1, 2, 95, 96, 97, 1000):
        rng, drawn = Random(n), set[int]()
        for _ in range(60):
            rows = draw_rows(n, rng).tolist()
            assert rows == sorted(set(rows))
            assert len(rows) == min(n, 96)
            assert {0, n - 1} <= set(rows)
            drawn |= set(rows)
        assert len(drawn) >= 0.99 * n
        assert drawn <= set(range(n))
    assert draw_rows(5000, Random(1)).tolist() != draw_rows(5000, Random(2)).tolist()
    gaps = draw_rows(100_000, Random(3)).diff()
    assert (gaps > 1).sum() >= 94  # single rows, not runs


def test_cuts_are_no_multiples_of_a_block() -> None:
    rng = Random(0)
    for n in (2, 3, 64, 65, 1000):
        cuts = {draw_cut(n, rng) for _ in range(300)}
        assert cuts <= {cut for cut in range(1, n) if cut % 2}
        assert len(cuts) >= min(n // 2, 50)


class Faulty(ea.SoftmaxAttention):
    """Exact attention whose output is changed by a fault; its reference is right."""

    fault: Callable[[Faulty, Tensor, Tensor], Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Tensor] = {}

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return type(self).fault(self, q, super().compute(q, k, v, mask))


def _compute_seen_rows_only(self: Faulty, q: Tensor, out: Tensor) -> Tensor:
    n, seen = out.shape[2], torch.zeros(out.shape[2], dtype=torch.bool)
    for start in (0, n // 2 - 16, n - 32):
        seen[start : start + 32] = True
    return out * seen[:, None]


def _shift_a_tile(self: Faulty, q: Tensor, out: Tensor) -> Tensor:
    out = out.clone()
    if out.shape[2] >= 192:
        out[:, :, 128:192] = out[:, :, 64:128]
    return out


def _round_one_head(self: Faulty, q: Tensor, out: Tensor) -> Tensor:
    out = out.clone()
    out[-1, -1, 40:] = out[-1, -1, 40:].bfloat16().to(out)
    return out


def _swap_single_rows(self: Faulty, q: Tensor, out: Tensor) -> Tensor:
    """Three rows of a thousand, which drawn rows rarely include, at places of a whole tile."""
    out = out.clone()
    out[:, :, 63 : min(out.shape[2], 200) : 64] *= 1.01
    return out


def _remember_a_row(self: Faulty, q: Tensor, out: Tensor) -> Tensor:
    """The last row is that of the first call of this size."""
    kept = self.kept.setdefault(str(out.shape), out[:, :, -1:].clone())
    return torch.cat([out[:, :, :-1], kept], 2)


OUTPUT_FAULTS = {  # and whether drawn rows alone suffice, round after round
    "seen rows only": (_compute_seen_rows_only, True),
    "shifted tile": (_shift_a_tile, True),
    "rounded head": (_round_one_head, True),
    "single rows": (_swap_single_rows, False),
    "remembered row": (_remember_a_row, False),
}


def _register(name: str, fault: Callable[[Faulty, Tensor, Tensor], Tensor]) -> None:
    ea.register(name, family="full")(type("Case", (Faulty,), {"fault": fault, "__doc__": Faulty.__doc__}))


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("fault", OUTPUT_FAULTS)
@pytest.mark.parametrize(
    "axes", [{"causal": True}, {"batch": 2, "heads": 4}, {"seq_len": 2011, "head_dim": 64}], ids=str
)
def test_faults_in_some_rows_are_detected(fault: str, mode: str, axes: dict[str, Any]) -> None:
    plant, rows_suffice = OUTPUT_FAULTS[fault]
    _register("zz_faulty", plant)
    w = Workload(tiny_suites.case("zz_faulty", mode, **{"seq_len": 1000} | axes))
    subject = make_timed(w, seed=7)
    calls: Any = subject.run.__self__  # pyright: ignore[reportFunctionMemberAccess]
    calls.wholly_verified = rows_suffice

    def verify_two_rounds() -> None:
        for _ in range(2):
            subject.reset(2)
            subject.run(2)
            subject.verify()
            calls.wholly_verified = rows_suffice

    with pytest.raises(InvalidResult, match="differs from the reference"):
        verify_two_rounds()


@pytest.mark.parametrize("fill", ["full", "drawn", "packed"])
@pytest.mark.parametrize("variant", ["full", "linear", "sliding_window:window=7", "mqa", "cosformer", "random_blocks"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_whole_outputs_of_correct_mechanisms_are_accepted(variant: str, dtype: str, fill: str) -> None:
    w = Workload(tiny_suites.case(variant, seq_len=777, dtype=dtype, fill=fill, batch=3, causal=True))
    out = w.forward(w.sample)
    for seed in range(4):
        check_repeated(w, w.sample, out, Random(seed))
        check_call(w, w.sample, (out,), Random(seed))


def _list_query_counts(monkeypatch: pytest.MonkeyPatch, method: str) -> list[int]:
    """A list that gets the number of queries of each call of a method of exact attention."""
    sizes: list[int] = []
    real = getattr(ea.SoftmaxAttention, method)

    def count(self: Any, q: Tensor, *args: Any, **inputs: Any) -> Tensor:
        sizes.append(q.shape[2])
        return real(self, q, *args, **inputs)

    monkeypatch.setattr(ea.SoftmaxAttention, method, count)
    return sizes


def test_the_reference_computes_all_drawn_rows_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = _list_query_counts(monkeypatch, "oracle")
    w = Workload(tiny_suites.case("full", seq_len=1000))
    assert w.reference_supports_positions
    sizes.clear()
    out = w.forward(w.sample)
    check_call(w, w.sample, (out,), Random(0))
    assert sizes == [96]
    sizes.clear()
    monkeypatch.setattr(output_comparison, "MAX_PAIRS_PER_CALL", 40 * 1000 * w.shape.heads)
    check_call(w, w.sample, (out,), Random(0))
    assert sizes == [40, 40, 16]


def test_a_drawn_part_is_computed_unless_the_whole_output_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Workload(tiny_suites.case("full", seq_len=300, causal=True))
    out = w.forward(w.sample)
    sizes = _list_query_counts(monkeypatch, "compute")
    check_repeated(w, w.sample, out, Random(0))
    assert (len(sizes), sum(sizes)) == (2, 300)
    sizes.clear()
    wrong = out.clone()
    wrong[:, :, 150] *= 1.01  # the middle is in either part about as often
    found = 0
    for seed in range(40):
        check_repeated(w, w.sample, out, Random(seed), whole=False)
        try:
            check_repeated(w, w.sample, wrong, Random(seed), whole=False)
        except InvalidResult:
            found += 1
    assert len(sizes) == 80
    assert 10 <= found <= 38
    assert len(set(sizes)) > 20
