"""Causal linear attention: a scan over runs of positions, with one state of sums for all that came before.

What happens within a run is in `chunks`, and once more in C++ in `compiled`. No state is kept for a position, nor for
a run: the backward pass goes over the runs once in each direction and works them out again. Shapes are those of `sums`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..native import scan as compiled
from . import chunks
from .chunks import CHUNK, State
from .sums import Job, Sums, Tape, before_or_none, divide, started, undivided


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
    given = (job, valid, q, k, v, logs, *before_or_none(before), *job.parameters)
    out, *sums = cast(tuple[Tensor, ...], _Scan.apply(*given))
    return out, Sums(*sums)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, valid: Any, q: Tensor, k: Tensor, v: Tensor, logs: Any, *rest: Any) -> Any:
        state = State(started(job, k, v, logs, rest[:3]), job.decays)
        out = q.new_empty(*q.shape[:3], v.shape[2])
        totals = state.kv.new_empty(*q.shape[:3], 1) if job.divisor else None
        for rows in _runs(job, q, k):
            x, _ = job.queries(q[:, :, rows], rows)
            y, a = job.keys(k[:, rows], rows, valid, logs)
            top, total = _kernel(job).attend(x, y, job.wide(v[:, rows]), a, state)
            if totals is not None:
                totals[:, :, rows] = total
            divide(job, top, total, out[:, :, rows])
        ctx.job = job
        ctx.save_for_backward(valid, q, k, v, logs, *rest[:3], out, totals)
        if state.reference is not None:
            ctx.mark_non_differentiable(state.reference)
        return out, state.kv, state.z, state.reference

    @staticmethod
    @once_differentiable  # a second derivative would miss what the state has of it, so it is refused
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        job: Job = ctx.job
        valid, q, k, v, logs, *before, out, totals = ctx.saved_tensors
        call = _Call(job, valid, q, k, v, logs, out, grads[0], *job.divisors(totals))
        tape, state = Tape(job), State(started(job, k, v, logs, tuple(before)), job.decays)
        by_q, past = _by_queries(call, tape, state)
        by_state = State(Sums(grads[1].clone(), grads[2].clone()), job.decays)
        by_k, by_v, by_logs = _by_keys(call, tape, past, by_state)
        by_sums = (by_state.kv, by_state.z) if ctx.needs_input_grad[6] else (None, None)
        return None, None, by_q, by_k, by_v, by_logs, *by_sums, None, *tape.by_parameters


class _Call(NamedTuple):
    """What the backward pass knows of a call."""

    job: Job
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
        return _runs(self.job, self.q, self.k)

    def undivided(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        return undivided(self.grad, self.out, self.divisors, self.slopes, rows)


def _kernel(job: Job) -> Any:
    """The module that goes through a run."""
    return compiled if job.compiled else chunks


def _runs(job: Job, q: Tensor, k: Tensor) -> list[slice]:
    lanes, width = len(k) * q.shape[1], k.shape[2]
    return job.runs(k.shape[1], lanes, width, job.step(CHUNK, lanes, width))


def _by_queries(call: _Call, tape: Tape, state: State) -> tuple[Tensor, list[list[Tensor | None]]]:
    """Forwards, with the state as it was. Returns the gradient, and for each run the references before its chunks."""
    by_q, past = torch.empty_like(call.q), []
    for rows in call.runs():
        _, _, back = tape.record(partial(call.job.queries, rows=rows), call.q[:, :, rows])
        y, a = call.job.keys(call.k[:, rows], rows, call.valid, call.logs)
        by_x, references = _kernel(call.job).by_queries(
            *call.undivided(rows), y, call.job.wide(call.v[:, rows]), a, state
        )
        by_q[:, :, rows] = back(by_x)
        past.append(references)
    return by_q, past


def _by_keys(
    call: _Call, tape: Tape, past: list[list[Tensor | None]], by_state: State
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Backwards, with the gradient by the state behind each chunk."""
    by_k, by_v = torch.empty_like(call.k), torch.empty_like(call.v)
    by_logs = None if call.logs is None else torch.empty_like(call.logs)
    for rows, references in zip(reversed(call.runs()), reversed(past), strict=True):
        x, _ = call.job.queries(call.q[:, :, rows], rows)
        keys = partial(call.job.keys, rows=rows, valid=call.valid, logs=call.logs)
        y, a, back = tape.record(keys, call.k[:, rows])
        by_rows = call.undivided(rows)
        by_y, by_v[:, rows] = _kernel(call.job).by_keys(
            x, y, call.job.wide(call.v[:, rows]), a, *by_rows, by_state, references
        )
        by_a = None if a is None else (by_y * y).sum(-1)
        if by_logs is not None and by_a is not None:
            by_logs[:, rows] = by_a
        by_k[:, rows] = back(by_y, by_a)
    return by_k, by_v, by_logs
