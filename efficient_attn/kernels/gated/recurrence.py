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
from ..softmax.softmax_kernel import cut_range
from . import stretch
from .decays import BLOCK
from .stretch import Inputs, fold, unfold

CHUNK = 64  # positions: the pairs within a chunk cost more, the longer it is, and the recurrence more, the shorter
STRETCH_ELEMENTS = 2**18  # of keys in a stretch: more would not stay in the cache
MAX_STRETCH = 4096  # positions
KERNEL = "a recurrent state's kernel"


def scan(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs ``[Bh, G, N, E]`` and the state after the last position. state: ``[Bh, D, E]``, which stays as it is."""
    if torch.compiler.is_compiling():
        from .recurrence_op import scan_op

        return scan_op(inputs, state)
    out, end, _ = _RecurrenceFunction.apply(*inputs, state)
    return out, end


def step(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """`scan` of one position, without gradients; changes the state."""
    k, v = widen(inputs.k), widen(inputs.v)
    if inputs.g is not None:
        state.mul_(widen(inputs.g).mT.exp())
    if inputs.b is None:
        state.baddbmm_(k.mT, v)
    else:
        errors = torch.baddbmm(v, k, state, alpha=-1).mul_(widen(inputs.b)[..., None])
        state.baddbmm_(k.mT, errors)
    return read(inputs.q, state), state


def read(q: Tensor, state: Tensor) -> Tensor:
    """What queries ``[Bh, G, N, D]`` read of one state: ``[Bh, G, N, E]``."""
    out = widen(q).flatten(1, 2) @ state
    return out.mul_(q.shape[3] ** -0.5).unflatten(1, q.shape[1:3]).to(q.dtype)


def run(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`scan`, with the states ``[stretches, Bh, D, E]`` before each stretch."""
    q, v = inputs.q, inputs.v
    heads, stretches = cut(inputs)
    out, end = q.new_empty(*q.shape[:3], v.shape[2]), torch.empty_like(state)
    starts = state.new_empty(len(stretches), *state.shape)
    for lanes in heads:
        some, lane_state = _select_heads(inputs, lanes), state[lanes]
        for i, (rows, size) in enumerate(stretches):
            starts[i, lanes] = lane_state
            part = stretch.prepare(some, rows, size)
            states, u = stretch.recur(part, lane_state)
            lane_state = states[:, -1]
            out[lanes, :, rows] = unfold(stretch.attend(part, states, u), len(lane_state), rows).transpose(1, 2)
        end[lanes] = lane_state
    return out, end, starts


def run_backward(
    grad: Tensor, grad_end: Tensor, inputs: Inputs, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
    """Gradients by q, k, v, g, b and the first state."""
    grads = Inputs(*(None if x is None else x.new_empty(x.shape) for x in inputs))  # pyright: ignore[reportArgumentType]
    grad_start, (heads, stretches) = torch.empty_like(grad_end), cut(inputs)
    for lanes in heads:
        some, some_grads, grad_state = _select_heads(inputs, lanes), _select_heads(grads, lanes), grad_end[lanes]
        for (rows, size), start in zip(reversed(stretches), starts[:, lanes].flip(0), strict=True):
            grad_rows = fold(grad[lanes].transpose(1, 2), rows, size)
            part = stretch.prepare(some, rows, size)
            part_grads, grad_state = stretch.backward(part, grad_rows, start, grad_state)
            grad_q, *key_grads = (None if x is None else unfold(x, len(start), rows) for x in part_grads)
            assert grad_q is not None
            some_grads.q[:, :, rows] = grad_q.transpose(1, 2).mul(grad_q.shape[3] ** -0.5)
            for x, gradient in zip(some_grads[1:], key_grads, strict=True):
                if x is not None and gradient is not None:
                    x[:, rows] = gradient.view(x[:, rows].shape)
        grad_start[lanes] = grad_state
    return *grads, grad_start  # pyright: ignore[reportReturnType]


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


def cut(inputs: Inputs) -> tuple[list[slice], list[tuple[slice, int]]]:
    """Heads to process together, as few as keep all threads busy, so that more positions are and need no copies. For
    each of these stretches of whole chunks, and the rest of the positions as a chunk of its own; each with its chunk
    size."""
    count, length, width = inputs.k.shape
    lanes = min(max(STRETCH_ELEMENTS // (length * width), torch.get_num_threads()), count)
    size = min(max(STRETCH_ELEMENTS // (lanes * width * CHUNK), 1) * CHUNK, MAX_STRETCH)
    whole = length // CHUNK * CHUNK
    stretches = [(rows, CHUNK) for rows in cut_range(whole, size)]
    if whole < length:
        stretches.append((slice(whole, length), max(BLOCK, 1 << (length - whole - 1).bit_length())))
    return list(cut_range(count, lanes)), stretches


def _select_heads(inputs: Inputs, lanes: slice) -> Inputs:
    return Inputs(*(None if x is None else x[lanes] for x in inputs))  # pyright: ignore[reportArgumentType]
