"""Compare outputs, steps and gradients with the reference implementation, on some rows where all are too many."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.shapes import Sample, Values
from ...instruments.distance import relative_error
from .inputs import list_tensors
from .padded_rows import select_rows
from .workload import Workload, make_leaves

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 4e-2, "float16": 5e-3}  # relative Frobenius error
ROWS = 32  # query rows at each position where a long output is compared
MAX_PAIRS_PER_ROUND = 2**22  # pairs of all heads that the reference may compute in every round


class InvalidResult(Exception):
    """The output differs from the reference output."""


def supports_rows(w: Workload) -> bool:
    """Whether single rows can be computed, so that the reference is cheap at any length."""
    return w.attn.traits.rows_alone


def dense_pairs(w: Workload) -> int:
    """Query-key pairs of all heads that the reference computes for a call."""
    return w.shape.batch * w.shape.heads * w.attn.dense_pairs(w.shape.n, w.shape.m)


# -- a call and its oracle -----------------------------------------------------------------------------------------


def check_call(w: Workload, sample: Sample, results: Sequence[Tensor], *, most: int = MAX_PAIRS_PER_ROUND) -> float:
    """The error of a call's result, on rows at its start, middle and end. Raises `InvalidResult`.

    The gradients of queries are compared on the same rows. Where single rows cannot be computed, all rows are compared
    while the reference computes at most ``most`` pairs; above that, with a new instance on copies of the inputs.
    """
    out = _check_shape(w, results[0].detach())
    if supports_rows(w):
        return max(_check_rows(w, sample, out, results, place) for place in list_rows(w.shape.n))
    if dense_pairs(w) <= most:
        return check_same(w, out, _call_reference(w, sample, w.mask))
    q, k, v, inputs = _copies(sample)
    with torch.no_grad():
        return check_same(w, out, w.case.create()(q, k, v, w.mask, **inputs))


def list_rows(n: int) -> list[slice]:
    """Some rows at the start, in the middle and at the end, without repetition."""
    middle = max(ROWS, n // 2 - ROWS // 2)
    end = max(middle + ROWS, n - ROWS)
    return [slice(start, min(start + ROWS, n)) for start in (0, middle, end) if start < n]


def _check_rows(w: Workload, sample: Sample, out: Tensor, results: Sequence[Tensor], place: slice) -> float:
    rows = select_rows(sample, w.mask, place, w.attn.traits.inputs)
    k, v, inputs = rows.sample.k, rows.sample.v, rows.sample.inputs
    q = rows.sample.q.detach().requires_grad_(len(results) > 1)
    with torch.set_grad_enabled(len(results) > 1):
        want = w.oracle(q, k, v, rows.mask, **inputs)
    error = check_same(w, out[:, :, rows.row], want.detach())
    if len(results) > 1:
        upstream = w.upstream(out)[:, :, rows.row]
        (slope,) = torch.autograd.grad(want, [q], upstream, allow_unused=True, materialize_grads=True)
        error = max(error, check_same(w, results[1][:, :, rows.row], slope, "the queries' gradient"))
    return error


def _call_reference(w: Workload, sample: Sample, mask: Mask) -> Tensor:
    with torch.no_grad():
        return w.oracle(sample.q, sample.k, sample.v, mask, **sample.inputs)


def _copies(sample: Sample) -> Sample:
    """Copies of the inputs; a tensor shared by two inputs stays shared."""
    made = {id(x): x.clone() for x in list_tensors(sample)}
    q, k, v, inputs = sample
    return Sample(
        made[id(q)], made[id(k)], v if v is None else made[id(v)], {n: made[id(x)] for n, x in inputs.items()}
    )


def check_step(w: Workload, context: Sample, tokens: Sequence[Sample], out: Tensor) -> float:
    """The error of the last of some steps after a context against the reference row. Raises `InvalidResult`."""
    sides, last = w.attn.traits.inputs, tokens[-1]
    with torch.no_grad():
        k, v = (_join([getattr(sample, name) for sample in (context, *tokens)]) for name in ("k", "v"))
        inputs = {
            n: _join([sample.inputs[n] for sample in (context, *tokens)]) if sides[n].side == "key" else x
            for n, x in last.inputs.items()
        }
        assert k is not None
        return check_same(w, out, w.oracle(last.q, k, v, Mask(causal=True), **inputs))


def _join(parts: Sequence[Values]) -> Values:
    """All positions: those of the context and the newest."""
    return None if parts[0] is None else torch.cat([x for x in parts if x is not None], 2)


# -- gradients -----------------------------------------------------------------------------------------------------


def check_gradients(
    w: Workload, sample: Sample, results: Sequence[Tensor], *, most: int = MAX_PAIRS_PER_ROUND
) -> float:
    """The error of all gradients of a call against the reference, where affordable. Raises `InvalidResult`.

    Above ``most`` pairs, where single rows can be computed, one more call gets a larger output gradient for some rows,
    and the change of its gradients is compared with the reference for these rows. Otherwise the gradients are compared
    with those of a new instance on copies of the inputs.
    """
    if dense_pairs(w) <= most:
        return _check_all(w, results, w.forward_backward(sample, attn=w.oracle))
    if supports_rows(w):
        return _check_difference(w, sample, results)
    return _check_all(w, results, w.forward_backward(_copies(sample), attn=w.case.create()))


def _check_all(w: Workload, results: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    names = ("output", *["gradient"] * (len(want) - 1))
    return max(check_same(w, a.detach(), b.detach(), f"the {n}") for n, a, b in zip(names, results, want, strict=True))


def _check_difference(w: Workload, sample: Sample, results: Sequence[Tensor]) -> float:
    upstream, leaves, count = w.upstream(results[0]), make_leaves(sample), 0
    more, parts = torch.zeros_like(upstream), []
    for place in list_rows(w.shape.n):
        rows = select_rows(leaves, w.mask, place, w.attn.traits.inputs)
        more[:, :, rows.row] = upstream[:, :, rows.row]
        count += rows.row.stop - rows.row.start
        parts.append(rows)
    scale = math.sqrt(w.shape.n / count)  # so that the contribution of the rows is at least as large as the rest
    more *= scale
    sources = [*list_tensors(leaves), *w.oracle.parameters()]
    wants = [torch.zeros_like(x) for x in sources]
    for rows in parts:
        q, k, v, inputs = rows.sample
        out = w.oracle(q, k, v, rows.mask, **inputs)
        slopes = torch.autograd.grad(out, sources, more[:, :, rows.row], allow_unused=True, materialize_grads=True)
        for want, slope in zip(wants, slopes, strict=True):
            want += slope
    other = w.forward_backward(sample, upstream + more)
    return max(
        check_same(w, new - old, want, "the contribution of some rows to a gradient")
        for old, new, want in zip(results[1:], other[1:], wants, strict=True)
    )


# -- one comparison ------------------------------------------------------------------------------------------------


def _check_shape(w: Workload, out: Tensor) -> Tensor:
    s = w.shape
    want = (s.batch, s.heads, s.n, s.value_dim)
    if tuple(out.shape) != want or out.dtype != w.sample.q.dtype:
        raise InvalidResult(f"the output is {out.dtype} {list(out.shape)}, not {w.sample.q.dtype} {list(want)}")
    return out


def check_same(w: Workload, out: Tensor, oracle: Tensor, label: str = "the output") -> float:
    """The error of a result with the reference's shape and dtype. Raises `InvalidResult` if it differs or the error is
    too large."""
    if out.shape != oracle.shape or out.dtype != oracle.dtype:
        raise InvalidResult(
            f"{label} is {out.dtype} {list(out.shape)}, the reference's {oracle.dtype} {list(oracle.shape)}"
        )
    if not torch.isfinite(oracle).all():
        raise InvalidResult(f"{label} of the reference implementation has values that are not finite")
    if not torch.isfinite(out).all():
        raise InvalidResult(f"{label} has values that are not finite")
    return check_error(relative_error(out, oracle), w.case.group.config.dtype, label)


def check_error(error: float, dtype: str, label: str = "the output") -> float:
    """The error, if the dtype's tolerance allows it. Raises `InvalidResult` otherwise."""
    limit = TOLERANCE[dtype]
    if not error <= limit:  # nor may it be no number
        raise InvalidResult(f"{label} differs from the reference: relative error {error:.2e}, allowed {limit:.0e}")
    return error
