"""A state with decays and, optionally, the delta rule, in chunks of positions.

    S'_t = diag(e^(g_t)) S_(t-1),    S_t = S'_t + k_t^T u_t,    out_t = q_t S_t / sqrt(D),    state [D, E]
    u_t = v_t,  or with the delta rule  u_t = b_t (v_t - k_t S'_t)

Within a chunk, from the state S before it, with pairs' weights of `decays` (A of keys with earlier keys, P of queries):

    T = (I + diag(b) A)^-1,   U = T diag(b) (V - K S),   O = P U + Q S,   S <- S + K^T U

where K, Q and S have the decays of their positions (arXiv:2406.06484, 2412.06464, 2510.26692; T is the UT transform).
All chunks of a stretch are computed together, except for the recurrence of S itself: two products a chunk, with the
delta rule, else one. Stored are the states before stretches; the backward pass recomputes a stretch.

Shapes: q ``[Bh, G, N, D]``, k ``[Bh, N, D]``, v ``[Bh, N, E]``, g ``[Bh, N, 1 or D]``, b ``[Bh, N]``, and in a stretch
of C chunks of c positions n = Bh C, as in `decays`.
"""

from typing import Any

import torch
from torch import Tensor

from ..dense import widen
from ..derivatives import KernelFunction, differentiate_once
from ..native import triton_step
from .passes import run, run_backward
from .recurrence_op import scan_op
from .stretch import Inputs

KERNEL = "a recurrent state's kernel"


def scan(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs ``[Bh, G, N, E]`` and the state after the last position. state: ``[Bh, D, E]``, which stays as it is."""
    if torch.compiler.is_compiling():
        return scan_op(inputs, state)
    out, end, _ = _RecurrenceFunction.apply(*inputs, state)
    return out, end


def step(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """`scan` of one position, without gradients; changes the state."""
    if triton_step.is_chosen(state, triton_step.MAX_WIDTH, *inputs):
        return triton_step.step_state(*inputs, state), state
    write(inputs, state)
    q = inputs.q
    out = (widen(q).flatten(1, 2) @ state).unflatten(1, q.shape[1:3])
    return torch.mul(out, q.shape[3] ** -0.5, out=q.new_empty(out.shape)), state


def write(inputs: Inputs, state: Tensor) -> None:
    """Change the state by one position; the queries are not read."""
    k, v = widen(inputs.k), inputs.v
    if inputs.g is not None:
        state.mul_(widen(inputs.g).mT.exp())
    if inputs.b is None:
        state.baddbmm_(k.mT, widen(v))
    else:
        errors = (v - k @ state).mul_(inputs.b[..., None])
        state.baddbmm_(k.mT, errors)


def read(q: Tensor, state: Tensor) -> Tensor:
    """What queries ``[Bh, G, N, D]`` read of one state: ``[Bh, G, N, E]``."""
    out = widen(q).flatten(1, 2) @ state
    return out.mul_(q.shape[3] ** -0.5).unflatten(1, q.shape[1:3]).to(q.dtype)


class _RecurrenceFunction(KernelFunction):
    """``(*inputs, state)``: outputs, the last state, and the states before stretches, which have no gradient."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *inputs, state = arguments
        return run(Inputs(*inputs), state)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, _ = inputs
        *_, starts = output
        ctx.save_for_backward(*tensors, starts)
        ctx.mark_non_differentiable(starts)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad, grad_end, _ = grads
        *tensors, starts = ctx.saved_tensors
        inputs = Inputs(*tensors)
        if grad is None:
            grad = inputs.q.new_zeros(*inputs.q.shape[:3], inputs.v.shape[2])
        grad_end = torch.zeros_like(starts[0]) if grad_end is None else grad_end
        return differentiate_once(KERNEL, _gradients, grad, grad_end, *tensors, starts)


def _gradients(grad: Tensor, grad_end: Tensor, *arguments: Any) -> Any:
    *tensors, starts = arguments
    return run_backward(grad, grad_end, Inputs(*tensors), starts)
