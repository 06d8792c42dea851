"""Compare outputs, steps and gradients with the reference implementation, of long calls on some rows only."""

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
ROWS = 32  # query rows that are compared at each of three positions of a long output
MAX_PAIRS_PER_ROUND = 2**22  # pairs of all heads that the reference may compute in every round


class InvalidResult(Exception):
    """The output differs from the reference output."""


def supports_rows(w: Workload) -> bool:
    """Whether single rows can be computed, so that the reference is cheap at any length."""
    return w.attn.traits.rows_alone


def dense_pairs(w: Workload) -> int:
    """Query-key pairs of all heads that the reference computes for a call."""
    return w.shape.batch * w.shape.heads * w.attn.dense_pairs(w.shape.n, w.shape.m)


# -- outputs -------------------------------------------------------------------------------------------------------


def check_call(
    w: Workload, sample: Sample, results: Sequence[Tensor], *, max_pairs: int = MAX_PAIRS_PER_ROUND
) -> float:
    """The error of a call's output, on rows at its start, middle and end. Raises `InvalidResult`.

    The gradients of queries are compared on the same rows. If single rows cannot be computed, all rows are compared:
    with the reference if it computes at most ``max_pairs`` pairs, else with a new instance on copies of the inputs.
    """
    out = _check_shape(w, results[0].detach())
    if supports_rows(w):
        return max(_check_rows(w, sample, out, results, rows) for rows in list_rows(w.shape.n))
    affordable = dense_pairs(w) <= max_pairs
    q, k, v, inputs = sample if affordable else _copy(sample)
    with torch.no_grad():
        attn = w.oracle if affordable else w.case.create()
        return check_same(w, out, attn(q, k, v, w.mask, **inputs))


def list_rows(n: int) -> list[slice]:
    """Some rows at the start, in the middle and at the end, without repetition."""
    middle = max(ROWS, n // 2 - ROWS // 2)
    end = max(middle + ROWS, n - ROWS)
    return [slice(start, min(start + ROWS, n)) for start in (0, middle, end) if start < n]


def _check_rows(w: Workload, sample: Sample, out: Tensor, results: Sequence[Tensor], rows: slice) -> float:
    checked, with_gradient = select_rows(sample, w.mask, rows, w.attn.traits.inputs), len(results) > 1
    q, k, v, inputs = checked.sample
    q = q.detach().requires_grad_(with_gradient)
    with torch.set_grad_enabled(with_gradient):
        expected = w.oracle(q, k, v, checked.mask, **inputs)
    error = check_same(w, out[:, :, checked.rows], expected.detach())
    if with_gradient:
        upstream = w.upstream(out)[:, :, checked.rows]
        (gradient,) = torch.autograd.grad(expected, [q], upstream, allow_unused=True, materialize_grads=True)
        error = max(error, check_same(w, results[1][:, :, checked.rows], gradient, "the queries' gradient"))
    return error


def _copy(sample: Sample) -> Sample:
    """Copies of the inputs; a tensor shared by two inputs stays shared."""
    copies = {id(x): x.clone() for x in list_tensors(sample)}
    q, k, v, inputs = sample
    inputs = {name: copies[id(x)] for name, x in inputs.items()}
    return Sample(copies[id(q)], copies[id(k)], v if v is None else copies[id(v)], inputs)


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
    w: Workload, sample: Sample, results: Sequence[Tensor], *, max_pairs: int = MAX_PAIRS_PER_ROUND
) -> float:
    """The error of all gradients of a call. Raises `InvalidResult`.

    Up to ``max_pairs`` pairs, they are compared with the reference's. Above that, if single rows can be computed, one
    more call gets a larger output gradient for some rows, and the change of its gradients is compared with the
    reference for these rows. Otherwise they are compared with those of a new instance on copies of the inputs.
    """
    if dense_pairs(w) <= max_pairs:
        return _check_all(w, results, w.forward_backward(sample, attn=w.oracle))
    if supports_rows(w):
        return _check_difference(w, sample, results)
    return _check_all(w, results, w.forward_backward(_copy(sample), attn=w.case.create()))


def _check_all(w: Workload, results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    names = ("output", *["gradient"] * (len(expected) - 1))
    pairs = zip(names, results, expected, strict=True)
    return max(check_same(w, a.detach(), b.detach(), f"the {name}") for name, a, b in pairs)


def _check_difference(w: Workload, sample: Sample, results: Sequence[Tensor]) -> float:
    upstream, leaves = w.upstream(results[0]), make_leaves(sample)
    parts = [select_rows(leaves, w.mask, rows, w.attn.traits.inputs) for rows in list_rows(w.shape.n)]
    added = torch.zeros_like(upstream)
    for part in parts:
        added[:, :, part.rows] = upstream[:, :, part.rows]
    count = sum(part.rows.stop - part.rows.start for part in parts)
    added *= math.sqrt(w.shape.n / count)  # so that the rows contribute at least as much as all others
    sources = [*list_tensors(leaves), *w.oracle.parameters()]
    expected = [torch.zeros_like(x) for x in sources]
    for part in parts:
        q, k, v, inputs = part.sample
        out = w.oracle(q, k, v, part.mask, **inputs)
        gradients = torch.autograd.grad(out, sources, added[:, :, part.rows], allow_unused=True, materialize_grads=True)
        for total, gradient in zip(expected, gradients, strict=True):
            total += gradient
    other = w.forward_backward(sample, upstream + added)
    return max(
        check_same(w, new - old, total, "the contribution of some rows to a gradient")
        for old, new, total in zip(results[1:], other[1:], expected, strict=True)
    )


# -- one comparison ------------------------------------------------------------------------------------------------


def _check_shape(w: Workload, out: Tensor) -> Tensor:
    s, dtype = w.shape, w.sample.q.dtype
    expected = [s.batch, s.heads, s.n, s.value_dim]
    if list(out.shape) != expected or out.dtype != dtype:
        raise InvalidResult(f"the output is {out.dtype} {list(out.shape)}, not {dtype} {expected}")
    return out


def check_same(w: Workload, out: Tensor, expected: Tensor, label: str = "the output") -> float:
    """The error of a result. Raises `InvalidResult` for another shape or dtype, values that are not finite, or an error
    above the tolerance."""
    if out.shape != expected.shape or out.dtype != expected.dtype:
        actual = f"{label} is {out.dtype} {list(out.shape)}"
        raise InvalidResult(f"{actual}, the reference's {expected.dtype} {list(expected.shape)}")
    if not torch.isfinite(expected).all():
        raise InvalidResult(f"{label} of the reference implementation has values that are not finite")
    if not torch.isfinite(out).all():
        raise InvalidResult(f"{label} has values that are not finite")
    return check_error(relative_error(out, expected), w.case.group.config.dtype, label)


def check_error(error: float, dtype: str, label: str = "the output") -> float:
    """The error, if the dtype's tolerance allows it. Raises `InvalidResult` otherwise."""
    limit = TOLERANCE[dtype]
    if not error <= limit:  # also true for NaN
        raise InvalidResult(f"{label} differs from the reference: relative error {error:.2e}, allowed {limit:.0e}")
    return error
