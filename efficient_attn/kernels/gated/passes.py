"""The two passes of a recurrence over its stretches: forward, and backward with stretches computed again."""

import torch
from torch import Tensor

from ..softmax.softmax_kernel import cut_range
from ..step_sizes import ON_GPU
from . import stretch
from .decays import BLOCK
from .stretch import Inputs, fold, unfold

CHUNK = 64  # positions: the pairs within a chunk cost more, the longer it is, and the recurrence more, the shorter
STRETCH_ELEMENTS = 2**18  # of keys in a stretch: more would not stay in the cache
MAX_STRETCH = 1024  # positions


def run(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the last state, and the states ``[stretches, Bh, D, E]`` before each stretch."""
    q, v = inputs.q, inputs.v
    scale, (heads, stretches) = q.shape[3] ** -0.5, cut(inputs)
    out, end = q.new_empty(*q.shape[:3], v.shape[2]), torch.empty_like(state)
    starts = state.new_empty(len(stretches), *state.shape)
    for lanes in heads:
        some, lane_state = _select_heads(inputs, lanes), state[lanes]
        for i, (rows, size) in enumerate(stretches):
            starts[i, lanes] = lane_state
            part = stretch.prepare(some, rows, size)
            states, u = stretch.recur(part, lane_state)
            lane_state = states[:, -1]
            part_out = unfold(stretch.attend(part, states, u), len(lane_state), rows).transpose(1, 2)
            out[lanes, :, rows] = part_out.mul_(scale)
        end[lanes] = lane_state
    return out, end, starts


def run_backward(
    grad: Tensor, grad_end: Tensor, inputs: Inputs, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
    """Gradients by q, k, v, g, b and the first state."""
    grads = Inputs(*(None if x is None else x.new_empty(x.shape) for x in inputs))  # pyright: ignore[reportArgumentType]
    scale = inputs.q.shape[3] ** -0.5
    grad_start, (heads, stretches) = torch.empty_like(grad_end), cut(inputs)
    for lanes in heads:
        some, some_grads, grad_state = _select_heads(inputs, lanes), _select_heads(grads, lanes), grad_end[lanes]
        for (rows, size), start in zip(reversed(stretches), starts[:, lanes].flip(0), strict=True):
            grad_rows = fold(grad[lanes].transpose(1, 2), rows, size) * scale
            part = stretch.prepare(some, rows, size)
            part_grads, grad_state = stretch.backward(part, grad_rows, start, grad_state)
            grad_q, *key_grads = (None if x is None else unfold(x, len(start), rows) for x in part_grads)
            assert grad_q is not None
            some_grads.q[:, :, rows] = grad_q.transpose(1, 2)
            for x, gradient in zip(some_grads[1:], key_grads, strict=True):
                if x is not None and gradient is not None:
                    x[:, rows] = gradient.view(x[:, rows].shape)
        grad_start[lanes] = grad_state
    return *grads, grad_start  # pyright: ignore[reportReturnType]


def cut(inputs: Inputs) -> tuple[list[slice], list[tuple[slice, int]]]:
    """Heads to process together, as few as keep all threads busy, so that more positions are and need no copies; on a
    GPU all. For each of these stretches of whole chunks, and the rest of the positions as a chunk of its own; each with
    its chunk size. Compiled code relies on the number of stretches, which must not depend on threads."""
    count, length, width = inputs.k.shape
    if inputs.k.device.type == "cpu":
        size = min(max(STRETCH_ELEMENTS // (width * CHUNK), 1) * CHUNK, MAX_STRETCH)
        lanes = min(max(STRETCH_ELEMENTS // (min(length, size) * width), torch.get_num_threads()), count)
    else:
        size, lanes = max(ON_GPU // max(count * width * CHUNK, 1), 1) * CHUNK, count
    whole = length // CHUNK * CHUNK
    stretches = [(rows, CHUNK) for rows in cut_range(whole, size)]
    if whole < length:
        stretches.append((slice(whole, length), max(BLOCK, 1 << (length - whole - 1).bit_length())))
    return list(cut_range(count, lanes)), stretches


def _select_heads(inputs: Inputs, lanes: slice) -> Inputs:
    return Inputs(*(None if x is None else x[lanes] for x in inputs))  # pyright: ignore[reportArgumentType]
