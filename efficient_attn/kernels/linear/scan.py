"""Causal linear attention: a scan over stretches of positions, with one state of sums for all that came before.

What happens within a stretch is in `chunks`, and once more in C++ in `native`. No state is kept for a position, nor for
a stretch: the backward pass goes over them once in each direction and works them out again. Shapes are those of `sums`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from ..derivatives import KernelFunction, differentiate_once
from ..native import scan as native
from . import chunks, ops
from .chunks import CHUNK
from .recipe import Recipe, Tape, divide, undivide
from .state import State
from .sums import KERNEL, Sums, start_sums, unpack


def scan(
    recipe: Recipe,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    logs: Tensor | None,
    before: Sums | None = None,
) -> tuple[Tensor, Sums]:
    """Query i over keys 0..i and what came before; N = M. Returns ``[Bh, G, N, E]`` and the sums over everything."""
    if torch.compiler.is_compiling():
        return ops.scan(recipe, q, k, v, valid, logs, before)
    given = (recipe, valid, q, k, v, logs, *unpack(before), *recipe.parameters)
    out, *sums, _ = cast(tuple[Tensor, ...], _Scan.apply(*given))
    return out, Sums(*sums)


class _Scan(KernelFunction):
    @staticmethod
    def forward(recipe: Recipe, valid: Any, q: Tensor, k: Tensor, v: Tensor, logs: Any, *rest: Any) -> Any:
        state = _hold(recipe, start_sums(recipe, k, v, logs, rest[:3]))
        out = q.new_empty(*q.shape[:3], v.shape[2])
        totals = state.kv.new_empty(*q.shape[:3], 1) if recipe.divisor else None
        for rows in _cut(recipe, q, k):
            x, _ = recipe.queries(q[:, :, rows], rows)
            y, a = recipe.keys(k[:, rows], rows, valid, logs)
            here = out[:, :, rows]
            top = here if out.dtype == state.kv.dtype else state.kv.new_empty(here.shape)
            total = _choose_kernel(recipe).attend(x, y, recipe.wide(v[:, rows]), a, state, top)
            if totals is not None and total is not None:
                totals[:, :, rows] = total
            divide(recipe, top, total, here)
        return out, state.kv, state.z, state.reference, totals

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.recipe, *tensors = inputs[:9]
        out, *_, reference, totals = output
        ctx.save_for_backward(*tensors, out, totals)
        ctx.mark_non_differentiable(*(x for x in (reference, totals) if x is not None))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors  # read once: checkpoints insist on it
        by_out = torch.zeros_like(saved[-2]) if grads[0] is None else grads[0]
        given = (*saved, ctx.recipe, ctx.needs_input_grad[6])
        return None, None, *differentiate_once(KERNEL, _gradients, by_out, *grads[1:3], *given)


def _gradients(
    grad: Tensor,
    by_kv: Tensor | None,
    by_z: Tensor | None,
    valid: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    logs: Tensor | None,
    kv: Tensor | None,
    z: Tensor | None,
    reference: Tensor | None,
    out: Tensor,
    totals: Tensor | None,
    recipe: Recipe,
    has_past: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_Scan` from ``q`` on."""
    call = _Call(recipe, valid, q, k, v, logs, out, grad, *recipe.divisors(totals))
    tape, state = Tape(recipe), _hold(recipe, start_sums(recipe, k, v, logs, (kv, z, reference)))
    by_end = [torch.zeros_like(x) if g is None else g.clone() for g, x in ((by_kv, state.kv), (by_z, state.z))]
    by_q, past = _by_queries(call, tape, state)
    by_state = _hold(recipe, Sums(*by_end))
    by_k, by_v, by_logs = _by_keys(call, tape, past, by_state)
    by_sums = (by_state.kv, by_state.z) if has_past else (None, None)
    return by_q, by_k, by_v, by_logs, *by_sums, None, *tape.by_parameters


class _Call(NamedTuple):
    """What the backward pass knows of a call."""

    recipe: Recipe
    valid: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    logs: Tensor | None
    out: Tensor
    grad: Tensor
    divisors: Tensor | None
    slopes: Tensor | None

    def cut(self) -> list[slice]:
        return _cut(self.recipe, self.q, self.k)

    def undivide(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        return undivide(self.grad, self.out, self.divisors, self.slopes, rows)


class Kernel(Protocol):
    """What goes through a stretch, chunk by chunk. See `chunks`."""

    def attend(
        self, x: Tensor, y: Tensor, v: Tensor, a: Tensor | None, state: State, tops: Tensor
    ) -> Tensor | None: ...

    def by_queries(
        self, by_top: Tensor, by_total: Tensor | None, y: Tensor, v: Tensor, a: Tensor | None, state: State
    ) -> tuple[Tensor, list[Tensor | None]]: ...

    def by_keys(
        self,
        x: Tensor,
        y: Tensor,
        v: Tensor,
        a: Tensor | None,
        by_top: Tensor,
        by_total: Tensor | None,
        by_state: State,
        references: list[Tensor | None],
    ) -> tuple[Tensor, Tensor]: ...


def _hold(recipe: Recipe, sums: Sums) -> State:
    return State(sums, decays=recipe.decays, steady=recipe.steady, divides=recipe.divisor is not None)


def _choose_kernel(recipe: Recipe) -> Kernel:
    return native if recipe.native else chunks


def _cut(recipe: Recipe, q: Tensor, k: Tensor) -> list[slice]:
    lanes, width = len(k) * q.shape[1], k.shape[2]
    return recipe.cut(k.shape[1], lanes, width, recipe.fit(CHUNK, lanes, width))


def _by_queries(call: _Call, tape: Tape, state: State) -> tuple[Tensor, list[list[Tensor | None]]]:
    """Forwards, with the state as it was. Returns the gradient, and for each stretch references before chunks."""
    by_q, past = torch.empty_like(call.q), []
    for rows in call.cut():
        _, _, back = tape.record(partial(call.recipe.queries, rows=rows), call.q[:, :, rows])
        y, a = call.recipe.keys(call.k[:, rows], rows, call.valid, call.logs)
        by_x, references = _choose_kernel(call.recipe).by_queries(
            *call.undivide(rows), y, call.recipe.wide(call.v[:, rows]), a, state
        )
        by_q[:, :, rows] = back(by_x)
        past.append(references)
    return by_q, past


def _by_keys(
    call: _Call, tape: Tape, past: list[list[Tensor | None]], by_state: State
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Backwards, with the gradient by the state after each chunk."""
    by_k, by_v = torch.empty_like(call.k), torch.empty_like(call.v)
    by_logs = None if call.logs is None else torch.empty_like(call.logs)
    for rows, references in zip(reversed(call.cut()), reversed(past), strict=True):
        x, _ = call.recipe.queries(call.q[:, :, rows], rows)
        keys = partial(call.recipe.keys, rows=rows, valid=call.valid, logs=call.logs)
        y, a, back = tape.record(keys, call.k[:, rows], None if call.valid is None else ~call.valid[:, rows])
        by_rows = call.undivide(rows)
        by_y, by_v[:, rows] = _choose_kernel(call.recipe).by_keys(
            x, y, call.recipe.wide(call.v[:, rows]), a, *by_rows, by_state, references
        )
        by_a = None if a is None else (by_y * y).sum(-1)
        if by_logs is not None and by_a is not None:
            by_logs[:, rows] = by_a
        by_k[:, rows] = back(by_y, by_a)
    return by_k, by_v, by_logs
