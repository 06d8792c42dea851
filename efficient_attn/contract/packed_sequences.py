"""Packed sequences: several sequences concatenated in one call, each with the result of a separate call."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..errors import UsageError
from .mask import Mask
from .shapes import Inputs, Values, map_tensors


def run_each_sequence(
    run: Callable[..., Tensor], q: Tensor, k: Tensor, v: Values, mask: Mask, inputs: Inputs
) -> Tensor:
    """The packed results of ``run(q, k, v, mask, **inputs)`` for each sequence in ``mask.cu_seqlens``. Sequences of one
    length form the batch of one call, so that N positions need at most sqrt(2 N) calls. Tensors are split and joined
    once for all calls, because the gradient of each separate slice would be as long as all N positions."""
    n = q.shape[2]
    for name, x in inputs.items():
        if x.ndim < 3 or x.shape[0] != 1 or x.shape[2] != n:
            raise UsageError(f"packed sequences: {name} must be [1, heads, {n}, ..], got {list(x.shape)}")
    lengths = mask.packed_lengths(n)
    by_length: dict[int, list[int]] = {}
    for s, length in enumerate(lengths):
        if length:
            by_length.setdefault(length, []).append(s)
    groups = list(by_length.values()) or [[0]]
    single_mask = replace(mask, cu_seqlens=None)
    *stacks, input_stacks = map_tensors(partial(_stack, lengths=lengths, groups=groups), q, k, v, inputs)
    rows: dict[int, Tensor] = {}
    for index, group in enumerate(groups):
        sequence_inputs = {name: x[index] for name, x in input_stacks.items()}
        out = run(*(None if x is None else x[index] for x in stacks), single_mask, **sequence_inputs)
        if len(groups) == 1:
            return out.transpose(0, 1).flatten(1, 2)[None]
        rows |= zip(group, out.unbind(), strict=True)
    return torch.cat([rows[s] for s in sorted(rows)], 1)[None]


def _stack(x: Tensor, lengths: list[int], groups: list[list[int]]) -> list[Tensor]:
    """``x [1, heads, N, ..]`` as a ``[count, heads, length, ..]`` for each group; views if there is one group."""
    if len(groups) == 1:
        count = len(groups[0])
        return [x[0].unflatten(1, (count, x.shape[2] // count)).transpose(0, 1)]
    parts = x[0].split(lengths, 1)
    return [torch.stack([parts[s] for s in group]) if len(group) > 1 else parts[group[0]][None] for group in groups]
