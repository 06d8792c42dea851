"""Causal linear attention: a scan over chunks, with one state of sums for all that came before a chunk.

Within a chunk the weights of its pairs are formed; the past is read from the state. So no state is kept for a position,
and the backward pass, which goes over the chunks once in each direction, works the states out again. Shapes are those
of `sums`.

Where keys have weights, those of one chunk are relative to the running maximum *of each row*: a reference from further
on would let the future reach the past.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dense import wide
from .sums import Job, Sums, Tape, before_or_none, started, undivided

CHUNK = 64  # positions a step without gradient: pairs within a chunk cost more, the longer it is
TRAIN_CHUNK = 128  # with gradient: the backward pass has more to do a step


def scan(
    job: Job,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    logs: Tensor | None,
    before: Sums | None = None,
) -> tuple[Tensor, Sums]:
    """Query i over keys 0..i and what came before; N = M. Returns ``[Bh, G, N, E]`` and the sums over everything."""
    past = before_or_none(before)
    graph = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, logs, past[0]))
    chunk = job.step(TRAIN_CHUNK if graph else CHUNK, len(k) * q.shape[1], k.shape[2])
    given = (job, chunk, valid, q, k, v, logs, *past, *job.parameters)
    out, *sums = cast(tuple[Tensor, ...], _Scan.apply(*given))
    return out, Sums(*sums)


class _Weights(NamedTuple):
    """Weights of a chunk's keys: for its own queries, of the past for its queries, of its keys in the state behind it,
    of the past in that state, and that state's reference."""

    pairs: Tensor  # [Bh, 1, c, c], 0 for later keys
    past: Tensor  # [Bh, 1, c, 1]
    keys: Tensor  # [Bh, c, 1]
    carry: Tensor  # [Bh, 1]
    reference: Tensor  # [Bh]


def _weights(a: Tensor, reference: Tensor, decays: bool, dtype: torch.dtype) -> _Weights:
    """Logarithms ``[Bh, c]`` of a chunk's keys to weights. Differences are taken in float64, near the reference."""
    base = reference.masked_fill(reference == float("-inf"), 0)
    near, past = (a - base[:, None]).to(dtype), (reference - base).to(dtype)[:, None]
    rows = near if decays else torch.maximum(near.cummax(1)[0], past)
    last = rows[:, -1:]
    rows, top = (x.masked_fill(x == float("-inf"), 0) for x in (rows, last))
    size = a.shape[1]
    later = torch.ones(size, size, dtype=torch.bool, device=a.device).triu_(1)
    pairs = (near[:, None] - rows[:, :, None]).masked_fill_(later, float("-inf")).exp_()
    return _Weights(
        pairs[:, None],
        (past - rows).exp_()[:, None, :, None],
        (near - top).exp_()[..., None],
        (past - top).exp_(),
        base + last[:, 0],
    )


def _pairs(x: Tensor, y: Tensor, weights: _Weights | None) -> Tensor:
    """Products ``[Bh, G c, c]`` of a chunk's rows ``[Bh, G, c, .]`` and keys ``[Bh, c, .]``, 0 for later keys."""
    products = x.flatten(1, 2) @ y.mT
    return _causal(products, x.shape[1], weights)


def _causal(products: Tensor, group: int, weights: _Weights | None) -> Tensor:
    square = products.view(len(products), group, -1, products.shape[2])
    if weights is None:
        square.tril_()
    else:
        square.mul_(weights.pairs)
    return products


class _State:
    """The sums over all chunks so far."""

    def __init__(self, sums: Sums) -> None:
        self.kv, self.z, self.reference = sums

    def weights(self, a: Tensor | None, decays: bool) -> _Weights | None:
        if a is None or self.reference is None:
            return None
        return _weights(a, self.reference, decays, self.kv.dtype)

    def take(self, y: Tensor, v: Tensor, weights: _Weights | None) -> None:
        """Add a chunk."""
        if weights is not None:
            self.kv.mul_(weights.carry[..., None])
            self.z.mul_(weights.carry)
            y, self.reference = y * weights.keys, weights.reference
        self.kv.baddbmm_(y.mT, v)
        self.z += y.sum(1)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, job: Job, chunk: int, valid: Any, q: Tensor, k: Tensor, v: Tensor, logs: Any, *rest: Any
    ) -> Any:
        state = _State(started(job, k, v, logs, rest[:3]))
        out, group = q.new_empty(*q.shape[:3], v.shape[2]), q.shape[1]
        totals = state.kv.new_empty(*q.shape[:3], 1) if job.divisor else None
        references = []
        for rows in job.runs(k.shape[1], len(k) * group, k.shape[2], chunk):
            x, _ = job.queries(q[:, :, rows], rows)
            y, a = job.keys(k[:, rows], rows, valid, logs)
            for here, at in _chunks(rows, chunk):
                xs, ys, vs = x[:, :, here], y[:, here], wide(v[:, at])
                weights = state.weights(None if a is None else a[:, here], job.decays)
                references.append(state.reference)
                near = _pairs(xs, ys, weights)
                past = (xs if weights is None else xs * weights.past).flatten(1, 2)
                top = torch.baddbmm(near @ vs, past, state.kv)
                if job.divisor and totals is not None:
                    total = torch.baddbmm(near.sum(-1, keepdim=True), past, state.z[..., None])
                    totals[:, :, at] = total.unflatten(1, (group, -1))
                    top.div_(job.divisor(total))
                out[:, :, at] = top.unflatten(1, (group, -1))
                state.take(ys, vs, weights)
        ctx.job, ctx.chunk, ctx.references = job, chunk, references
        ctx.save_for_backward(valid, q, k, v, logs, *rest[:3], out, totals)
        if state.reference is not None:
            ctx.mark_non_differentiable(state.reference)
        return out, state.kv, state.z, state.reference

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        job: Job = ctx.job
        valid, q, k, v, logs, kv, z, reference, out, totals = ctx.saved_tensors
        call = _Call(job, ctx.chunk, ctx.references, valid, q, k, v, logs, out, grads[0], *job.divisors(totals))
        tape = Tape(job)
        by_q = _by_queries(call, tape, _State(started(job, k, v, logs, (kv, z, reference))))
        by_k, by_v, by_logs, *by_state = _by_keys(call, tape, grads[1].clone(), grads[2].clone())
        by_state = by_state if ctx.needs_input_grad[7] else (None, None)
        return None, None, None, by_q, by_k, by_v, by_logs, *by_state, None, *tape.by_parameters


class _Call(NamedTuple):
    """What the backward pass knows of a call."""

    job: Job
    chunk: int
    references: list[Tensor | None]  # of the state before each chunk
    valid: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    logs: Tensor | None
    out: Tensor
    grad: Tensor
    divisors: Tensor | None
    slopes: Tensor | None

    def runs(self) -> list[slice]:
        lanes = len(self.k) * self.q.shape[1]
        return self.job.runs(self.k.shape[1], lanes, self.k.shape[2], self.chunk)

    def weights(self, a: Tensor | None, here: slice, at: slice) -> _Weights | None:
        reference = self.references[at.start // self.chunk]
        if a is None or reference is None:
            return None
        return _weights(a[:, here], reference, self.job.decays, wide(self.v[:0]).dtype)

    def undivided(self, at: slice) -> tuple[Tensor, Tensor | None]:
        return undivided(self.grad, self.out, self.divisors, self.slopes, at)

    def by_pairs(self, by_top: Tensor, by_total: Tensor | None, vs: Tensor, weights: _Weights | None) -> Tensor:
        """Gradient ``[Bh, G c, c]`` by the products of features in a chunk."""
        found = by_top @ vs.mT if by_total is None else torch.baddbmm(by_total, by_top, vs.mT)
        return _causal(found, self.q.shape[1], weights)


def _by_queries(call: _Call, tape: Tape, state: _State) -> Tensor:
    """Forwards, with the state as it was."""
    by_q = torch.empty_like(call.q)
    for rows in call.runs():
        x, _, back = tape.record(partial(call.job.queries, rows=rows), call.q[:, :, rows])
        y, a = call.job.keys(call.k[:, rows], rows, call.valid, call.logs)
        by_x = torch.empty_like(x)
        for here, at in _chunks(rows, call.chunk):
            ys, vs, weights = y[:, here], wide(call.v[:, at]), call.weights(a, here, at)
            by_top, by_total = call.undivided(at)
            by_past = by_top @ state.kv.mT
            if by_total is not None:
                by_past.addcmul_(by_total, state.z[:, None])
            if weights is not None:
                by_past.view(*x.shape[:2], -1, x.shape[3]).mul_(weights.past)
            by_rows = by_past.baddbmm_(call.by_pairs(by_top, by_total, vs, weights), ys)
            by_x[:, :, here] = by_rows.unflatten(1, (x.shape[1], -1))
            state.take(ys, vs, weights)
        by_q[:, :, rows] = back(by_x)
    return by_q


def _by_keys(
    call: _Call, tape: Tape, by_kv: Tensor, by_z: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """Backwards, with the gradient by the state behind each chunk."""
    by_k, by_v = torch.empty_like(call.k), torch.empty_like(call.v)
    by_logs = None if call.logs is None else torch.empty_like(call.logs)
    for rows in reversed(call.runs()):
        x, _ = call.job.queries(call.q[:, :, rows], rows)
        keys = partial(call.job.keys, rows=rows, valid=call.valid, logs=call.logs)
        y, a, back = tape.record(keys, call.k[:, rows])
        by_y = torch.empty_like(y)
        for here, at in reversed(list(_chunks(rows, call.chunk))):
            xs, ys, vs = x[:, :, here], y[:, here], wide(call.v[:, at])
            weights = call.weights(a, here, at)
            by_top, by_total = call.undivided(at)
            kept = ys if weights is None else ys * weights.keys
            by_v[:, at] = torch.baddbmm(kept @ by_kv, _pairs(xs, ys, weights).mT, by_top)
            by_kept = by_z[:, None] + vs @ by_kv.mT
            if weights is not None:
                by_kept.mul_(weights.keys)
            by_pairs = call.by_pairs(by_top, by_total, vs, weights)
            by_y[:, here] = by_kept.baddbmm_(by_pairs.mT, xs.flatten(1, 2))
            past = xs.flatten(1, 2) if weights is None else (xs * weights.past).flatten(1, 2)
            if weights is not None:
                by_kv.mul_(weights.carry[..., None])
                by_z.mul_(weights.carry)
            by_kv.baddbmm_(past.mT, by_top)
            if by_total is not None:
                by_z += (past.mT @ by_total)[..., 0]
        by_a = None if a is None else (by_y * y).sum(-1)
        if by_logs is not None and by_a is not None:
            by_logs[:, rows] = by_a
        by_k[:, rows] = back(by_y, by_a)
    return by_k, by_v, by_logs, by_kv, by_z


def _chunks(rows: slice, size: int) -> list[tuple[slice, slice]]:
    """The chunks of a run: where they are in the run, and in the sequence."""
    starts = range(rows.start, rows.stop, size)
    found = [slice(start, min(start + size, rows.stop)) for start in starts]
    return [(slice(at.start - rows.start, at.stop - rows.start), at) for at in found]
