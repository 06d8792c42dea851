"""Causal linear attention: a scan over stretches of positions, with one state of sums for everything before.

`chunks` computes a stretch, and `native` the same in C++. No state is stored for positions or stretches: the backward
pass goes over them once in each direction and recomputes them. Shapes are those of `sums`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from ..derivatives import KernelFunction, differentiate_once
from ..native import cpp_scan as native
from . import chunks, scan_op
from .chunks import CHUNK
from .linear_config import FeatureTape, LinearConfig, divide, divide_backward
from .scan_state import ScanState
from .sums import KERNEL, Sums, start_sums, unpack_past


def scan(
    config: LinearConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    logs: Tensor | None,
    past: Sums | None = None,
) -> tuple[Tensor, Sums]:
    """Query i over keys 0..i and what came before; N = M. Returns ``[Bh, G, N, E]`` and the sums over everything."""
    if torch.compiler.is_compiling():
        return scan_op.scan(config, q, k, v, valid, logs, past)
    arguments = (config, valid, q, k, v, logs, *unpack_past(past), *config.parameters)
    out, *sums, _ = cast(tuple[Tensor, ...], _ScanFunction.apply(*arguments))
    return out, Sums(*sums)


class _ScanFunction(KernelFunction):
    @staticmethod
    def forward(config: LinearConfig, valid: Any, q: Tensor, k: Tensor, v: Tensor, logs: Any, *rest: Any) -> Any:
        state = _make_state(config, start_sums(config, k, v, logs, rest[:3]))
        out = q.new_empty(*q.shape[:3], v.shape[2])
        totals = state.kv.new_empty(*q.shape[:3], 1) if config.divisor else None
        for rows in _cut_stretches(config, q, k):
            x, _ = config.queries(q[:, :, rows], rows)
            y, a = config.keys(k[:, rows], rows, valid, logs)
            out_rows = out[:, :, rows]
            top = out_rows if out.dtype == state.kv.dtype else state.kv.new_empty(out_rows.shape)
            total = _choose_kernel(config).attend(x, y, config.widen(v[:, rows]), a, state, top)
            if totals is not None and total is not None:
                totals[:, :, rows] = total
            divide(config, top, total, out_rows)
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
        grad_out = torch.zeros_like(saved[-2]) if grads[0] is None else grads[0]
        arguments = (*saved, ctx.recipe, ctx.needs_input_grad[6])
        return None, None, *differentiate_once(KERNEL, _gradients, grad_out, *grads[1:3], *arguments)


def _gradients(
    grad: Tensor,
    grad_kv: Tensor | None,
    grad_z: Tensor | None,
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
    config: LinearConfig,
    has_past: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_Scan` from ``q`` on."""
    call = _BackwardCall(config, valid, q, k, v, logs, out, grad, *config.divisors(totals))
    tape, state = FeatureTape(config), _make_state(config, start_sums(config, k, v, logs, (kv, z, reference)))
    end_grads = [torch.zeros_like(x) if g is None else g.clone() for g, x in ((grad_kv, state.kv), (grad_z, state.z))]
    grad_q, references = _backward_queries(call, tape, state)
    grad_state = _make_state(config, Sums(*end_grads))
    grad_k, grad_v, grad_logs = _backward_keys(call, tape, references, grad_state)
    past_grads = (grad_state.kv, grad_state.z) if has_past else (None, None)
    return grad_q, grad_k, grad_v, grad_logs, *past_grads, None, *tape.grad_parameters


class _BackwardCall(NamedTuple):
    """The arguments of a backward pass."""

    config: LinearConfig
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
        return _cut_stretches(self.config, self.q, self.k)

    def divide_backward(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        return divide_backward(self.grad, self.out, self.divisors, self.slopes, rows)


class ScanKernel(Protocol):
    """A kernel for one stretch, chunk by chunk. See `chunks`."""

    def attend(
        self, x: Tensor, y: Tensor, v: Tensor, a: Tensor | None, state: ScanState, tops: Tensor
    ) -> Tensor | None: ...

    def backward_queries(
        self, grad_top: Tensor, grad_total: Tensor | None, y: Tensor, v: Tensor, a: Tensor | None, state: ScanState
    ) -> tuple[Tensor, list[Tensor | None]]: ...

    def backward_keys(
        self,
        x: Tensor,
        y: Tensor,
        v: Tensor,
        a: Tensor | None,
        grad_top: Tensor,
        grad_total: Tensor | None,
        grad_state: ScanState,
        references: list[Tensor | None],
    ) -> tuple[Tensor, Tensor]: ...


def _make_state(config: LinearConfig, sums: Sums) -> ScanState:
    return ScanState(sums, decays=config.decays, steady=config.steady, divides=config.divisor is not None)


def _choose_kernel(config: LinearConfig) -> ScanKernel:
    return native if config.native else chunks


def _cut_stretches(config: LinearConfig, q: Tensor, k: Tensor) -> list[slice]:
    lanes, width = len(k) * q.shape[1], k.shape[2]
    return config.cut(k.shape[1], lanes, width, config.fit(CHUNK, lanes, width))


def _backward_queries(
    call: _BackwardCall, tape: FeatureTape, state: ScanState
) -> tuple[Tensor, list[list[Tensor | None]]]:
    """Forwards, with the state as it was. Returns the gradient, and for each stretch references before chunks."""
    grad_q, stretch_references = torch.empty_like(call.q), []
    for rows in call.cut():
        _, _, backward = tape.record(partial(call.config.queries, rows=rows), call.q[:, :, rows])
        y, a = call.config.keys(call.k[:, rows], rows, call.valid, call.logs)
        grad_x, references = _choose_kernel(call.config).backward_queries(
            *call.divide_backward(rows), y, call.config.widen(call.v[:, rows]), a, state
        )
        grad_q[:, :, rows] = backward(grad_x)
        stretch_references.append(references)
    return grad_q, stretch_references


def _backward_keys(
    call: _BackwardCall, tape: FeatureTape, stretch_references: list[list[Tensor | None]], grad_state: ScanState
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Backwards, with the gradient by the state after each chunk."""
    grad_k, grad_v = torch.empty_like(call.k), torch.empty_like(call.v)
    grad_logs = None if call.logs is None else torch.empty_like(call.logs)
    for rows, references in zip(reversed(call.cut()), reversed(stretch_references), strict=True):
        x, _ = call.config.queries(call.q[:, :, rows], rows)
        keys = partial(call.config.keys, rows=rows, valid=call.valid, logs=call.logs)
        y, a, backward = tape.record(keys, call.k[:, rows], None if call.valid is None else ~call.valid[:, rows])
        sum_grads = call.divide_backward(rows)
        grad_y, grad_v[:, rows] = _choose_kernel(call.config).backward_keys(
            x, y, call.config.widen(call.v[:, rows]), a, *sum_grads, grad_state, references
        )
        grad_a = None if a is None else (grad_y * y).sum(-1)
        if grad_logs is not None and grad_a is not None:
            grad_logs[:, rows] = grad_a
        grad_k[:, rows] = backward(grad_y, grad_a)
    return grad_k, grad_v, grad_logs
