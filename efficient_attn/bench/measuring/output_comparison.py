"""Compare outputs, steps and gradients with the reference implementation, of long calls on drawn rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.shapes import Sample, Values
from .inputs import list_tensors
from .padded_rows import CheckedRows, select_rows, split_queries
from .row_errors import InvalidResult, compare
from .workload import Workload, make_leaves

N_ROWS = 96  # query rows of a comparison, of all heads and the whole batch
MAX_PAIRS_PER_ROUND = 2**22  # pairs of all heads that the reference may compute in every round
MAX_PAIRS_PER_CALL = 2**25  # pairs of all heads in one call of the reference, whose scores then take 128 MiB


def supports_rows(w: Workload) -> bool:
    """Whether single rows can be computed, so that the reference is cheap at any length."""
    return w.attn.traits.rows_alone


def dense_pairs(w: Workload) -> int:
    """Query-key pairs of all heads that the reference computes for a call."""
    return w.shape.batch * w.shape.heads * w.attn.dense_pairs(w.shape.n, w.shape.m)


# -- outputs -------------------------------------------------------------------------------------------------------


def draw_rows(n: int, rng: Random) -> Tensor:
    """The increasing indices of `N_ROWS` of n rows: the first, the last, and others that are drawn singly."""
    inner = rng.sample(range(1, n - 1), min(N_ROWS, n) - 2) if n > 2 else []
    return torch.tensor(sorted({0, n - 1, *inner}))


def check_call(
    w: Workload, sample: Sample, results: Sequence[Tensor], rng: Random, *, max_pairs: int = MAX_PAIRS_PER_ROUND
) -> float:
    """The error of a call's output, on rows drawn from ``rng``. Raises `InvalidResult`.

    The gradients of queries are compared on the same rows. If single rows cannot be computed, all rows are compared:
    with the reference if it computes at most ``max_pairs`` pairs, else with a new instance on copies of the inputs.
    """
    s, out, dtype = w.shape, results[0].detach(), w.sample.q.dtype
    expected = [s.batch, s.heads, s.n, s.value_dim]
    if list(out.shape) != expected or out.dtype != dtype:
        raise InvalidResult(f"the output is {out.dtype} {list(out.shape)}, not {dtype} {expected}")
    if supports_rows(w):
        return _check_rows(w, sample, out, results, draw_rows(w.shape.n, rng).to(out.device))
    affordable = dense_pairs(w) <= max_pairs
    q, k, v, inputs = sample if affordable else _copy(sample)
    with torch.no_grad():
        attn = w.oracle if affordable else w.case.create()
        return check_same(w, out, attn(q, k, v, w.mask, **inputs))


def check_repeated(w: Workload, sample: Sample, out: Tensor, rng: Random, *, whole: bool = True) -> None:
    """Compare a whole output with that of a new instance on copies of the inputs, in two parts, cut at a drawn row.

    The instance has no memory of earlier calls, and the cut shifts its tiles. Packed batches, and mechanisms that are
    compiled for each size, are not cut. whole: whether both parts are computed, or a drawn one. Raises `InvalidResult`.
    For mechanisms whose single rows can be computed.
    """
    attn, sample, n = w.case.create(), _copy(sample), w.shape.n
    parts = [(slice(0, n), sample, w.mask)]
    if n > 1 and w.mask.cu_seqlens is None and not attn.compiles_on(sample.q.device.type):
        parts = split_queries(sample, w.mask, draw_cut(n, rng), attn.traits.inputs)
    for rows, part, mask in parts if whole else [rng.choice(parts)]:
        with torch.no_grad():
            expected = attn(part.q, part.k, part.v, mask, **part.inputs)
        check_same(w, out[:, :, rows].detach(), expected, "the output, compared with that of a new instance,")


def draw_cut(n: int, rng: Random) -> int:
    """A row after the first of n, odd where possible, so that it is no multiple of any block."""
    cut = rng.randrange(1, n)
    return cut if cut % 2 else max(1, cut - 1)


def _check_rows(w: Workload, sample: Sample, out: Tensor, results: Sequence[Tensor], rows: Tensor) -> float:
    """The largest error of the output, and of the gradient of queries if there is one, on these rows."""
    with_gradient, errors = len(results) > 1, []
    terms = estimate_terms(w, sample, out) if with_gradient else 0.0
    for part in select_parts(w, sample, rows):
        q, k, v, inputs = part.sample
        q = q.detach().requires_grad_(with_gradient)
        with torch.set_grad_enabled(with_gradient):
            expected = w.oracle(q, k, v, part.mask, **inputs)
        errors.append(check_same(w, out[:, :, part.rows], expected.detach()))
        if with_gradient:
            upstream = w.upstream(out)[:, :, part.rows]
            (gradient,) = torch.autograd.grad(expected, [q], upstream, allow_unused=True, materialize_grads=True)
            label = "the queries' gradient"
            errors.append(check_same(w, results[1][:, :, part.rows], gradient, label, terms=terms))
    return max(errors)


def select_parts(w: Workload, sample: Sample, rows: Tensor) -> list[CheckedRows]:
    """The calls of the reference that compute these rows, each of at most `MAX_PAIRS_PER_CALL` pairs."""
    s = w.shape
    size = max(1, min(len(rows), MAX_PAIRS_PER_CALL // (s.batch * s.heads * s.m)))
    if not w.reference_supports_positions:
        size = 1
    return [part for some in rows.split(size) for part in select_rows(sample, w.mask, some, w.attn.traits.inputs)]


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
        expected = w.oracle(last.q, k, v, Mask(causal=True), **inputs)
        return check_same(w, out, expected, lossy=w.attn.traits.state_tolerance)


def _join(parts: Sequence[Values]) -> Values:
    """All positions: those of the context and the newest."""
    return None if parts[0] is None else torch.cat([x for x in parts if x is not None], 2)


# -- gradients -----------------------------------------------------------------------------------------------------


def check_gradients(
    w: Workload, sample: Sample, results: Sequence[Tensor], rng: Random, *, max_pairs: int = MAX_PAIRS_PER_ROUND
) -> float:
    """The error of all gradients of a call. Raises `InvalidResult`.

    Up to ``max_pairs`` pairs, they are compared with the reference's. Above that, if single rows can be computed, one
    more call gets a larger output gradient for drawn rows, and the change of its gradients is compared with the
    reference for these rows. Otherwise they are compared with those of a new instance on copies of the inputs.
    """
    if dense_pairs(w) <= max_pairs:
        return _check_all(w, sample, results, w.forward_backward(sample, attn=w.oracle))
    if supports_rows(w):
        return _check_difference(w, sample, results, draw_rows(w.shape.n, rng).to(results[0].device))
    return _check_all(w, sample, results, w.forward_backward(_copy(sample), attn=w.case.create()))


def _check_all(w: Workload, sample: Sample, results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    terms = estimate_terms(w, sample, results[0])
    error = check_same(w, results[0].detach(), expected[0].detach())
    pairs = zip(results[1:], expected[1:], strict=True)
    return max(error, *(check_same(w, a.detach(), b.detach(), "the gradient", terms=terms) for a, b in pairs))


def estimate_terms(w: Workload, sample: Sample, out: Tensor | None = None) -> float:
    """The norm of a value times its weight, a product of all inputs; with an output, of the terms whose sum a row of a
    gradient is. Both may cancel."""
    tensors = (sample.q, sample.k, sample.v, None if out is None else w.upstream(out))
    q, k, v, upstream = (1.0 if x is None else float(x[:, :, :N_ROWS].float().norm(dim=-1).mean()) for x in tensors)
    return upstream * v * (q * k if out is None else max(q, k)) * sample.q.shape[-1] ** -0.5


def _check_difference(w: Workload, sample: Sample, results: Sequence[Tensor], rows: Tensor) -> float:
    upstream, leaves = w.upstream(results[0]), make_leaves(sample)
    added = torch.zeros_like(upstream)
    # a factor, so that the rows contribute at least as much as all others
    added[:, :, rows] = upstream[:, :, rows] * math.sqrt(w.shape.n / len(rows))
    sources = [*list_tensors(leaves), *w.oracle.parameters()]
    expected = [torch.zeros_like(x) for x in sources]
    for part in select_parts(w, leaves, rows):
        q, k, v, inputs = part.sample
        out = w.oracle(q, k, v, part.mask, **inputs)
        gradients = torch.autograd.grad(out, sources, added[:, :, part.rows], allow_unused=True, materialize_grads=True)
        for total, gradient in zip(expected, gradients, strict=True):
            total += gradient
    other = w.forward_backward(sample, upstream + added)
    label, dtype = "the contribution of some rows to a gradient", w.case.group.config.dtype
    # of all rows together, because single ones may be smaller than the rounding errors of both results
    return max(
        compare((new - old).flatten(), total.flatten(), dtype, label)
        for old, new, total in zip(results[1:], other[1:], expected, strict=True)
    )


def check_same(
    w: Workload,
    out: Tensor,
    expected: Tensor,
    label: str = "the output",
    *,
    terms: float = 0.0,
    lossy: float = 0.0,
) -> float:
    """The error of a result: see `compare`."""
    products = 0.0 if terms or w.attn.traits.normalised else estimate_terms(w, w.sample)
    return compare(out, expected, w.case.group.config.dtype, label, terms=terms, products=products, lossy=lossy)
