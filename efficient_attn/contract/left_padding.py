"""Left padding of mechanisms that depend on absolute positions: these count from the first valid key of each row.

Rows with the same padding form the batch of one call without it, so that each gets the result that it would get alone.
A batch with G different paddings costs G calls, and a copy of its tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .mask import Mask
from .shapes import Inputs, Values, map_tensors
from .traits import Traits


def _count_left_padding(mask: Mask) -> list[int] | None:
    """The number of keys that each row's key_mask hides before the first valid one; None if no row has any. Reads the
    mask, which synchronizes a CUDA device. A row without valid keys has no position to count from: 0."""
    valid = mask.key_mask
    if valid is None or valid.is_meta or not valid.shape[1] or bool(valid[:, 0].all()):
        return None
    firsts = valid.int().argmax(1).tolist()  # of equal values the first one
    return firsts if any(firsts) else None


def run_each_start(
    run: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Values,
    mask: Mask,
    inputs: Inputs,
    traits: Traits,
) -> Tensor | None:
    """The results of ``run(q, k, v, mask, **inputs)`` with the rows' left padding removed; None if there is none.

    Queries before a row's first valid key have negative positions. In self-attention they are removed as well, and
    their outputs are zeros, if they see nothing because of causality, or cannot be computed apart from the others.
    """
    firsts, n, m = _count_left_padding(mask), q.shape[2], k.shape[2]
    if firsts is None:
        return None
    start = 0 if mask.query_positions is not None else mask.start(n, m)
    aligned = n == m and mask.query_positions is None and start == 0
    trims_queries = aligned and (mask.causal or not traits.rows_alone)
    trimmed_inputs = {name for name, x in traits.inputs.items() if trims_queries or x.side == "key"}
    # split once for all calls, because the gradient of each slice of a batch would be as long as the batch
    q_rows, k_rows, v_rows, input_rows = map_tensors(torch.Tensor.unbind, q, k, v, inputs)
    outputs: dict[int, Tensor] = {}
    for first, members in group_rows(firsts).items():
        skipped = first if trims_queries else 0  # queries
        out = run(
            _stack(q_rows, members, skipped),
            _stack(k_rows, members, first),
            None if v_rows is None else _stack(v_rows, members, first),
            _trim_mask(mask, members, first, skipped, start + skipped - first),
            **{name: _stack(x, members, first if name in trimmed_inputs else 0) for name, x in input_rows.items()},
        )
        outputs |= zip(members, F.pad(out, (0, 0, skipped, 0)).unbind(), strict=True)
    return torch.stack([outputs[b] for b in range(len(firsts))])


def _stack(rows: Sequence[Tensor], members: Sequence[int], first: int) -> Tensor:
    """The members among the rows ``[heads, length, ..]`` of a batch, from a position on."""
    return torch.stack([rows[b][:, first:] for b in members])


def _trim_mask(mask: Mask, rows: list[int], first: int, skipped: int, start: int) -> Mask:
    """The mask of some rows without their first keys and the skipped queries. start: the first query's position."""
    assert mask.key_mask is not None
    valid, key_lengths, query_lengths = mask.key_mask[rows, first:], mask.key_lengths, mask.query_lengths
    fields: dict[str, Any] = {"key_mask": None if valid.all() else valid}
    if key_lengths is not None:
        fields["key_lengths"] = (key_lengths[rows] - first).clamp(min=0)
    if query_lengths is not None:
        fields["query_lengths"] = (query_lengths[rows] - skipped).clamp(min=0)
    if mask.query_positions is not None:
        return replace(mask, **fields, query_positions=mask.query_positions - first)
    return replace(mask, **fields, query_start=start)


def group_rows(firsts: Sequence[int]) -> dict[int, list[int]]:
    """The rows that begin at each position."""
    groups: dict[int, list[int]] = {}
    for row, first in enumerate(firsts):
        groups.setdefault(first, []).append(row)
    return groups


# -- decoding --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StatesByStart:
    """The decode states of the rows that begin at each position. rows: of the batch, as many groups as firsts. length:
    positions so far, padding included."""

    firsts: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    states: tuple[Any, ...]
    length: int = 0

    @classmethod
    def create(cls, new_state: Callable[[int, int], Any], firsts: Sequence[int], max_len: int) -> "StatesByStart":
        """Empty states. new_state: makes one for a number of rows and positions."""
        groups = group_rows(firsts)
        states = tuple(new_state(len(rows), max_len - first) for first, rows in groups.items())
        return cls(tuple(groups), tuple(map(tuple, groups.values())), states)

    def advance(
        self, advance: Callable[..., tuple[Tensor, Any]], q: Tensor, k: Tensor, v: Values, inputs: Inputs
    ) -> tuple[Tensor, "StatesByStart"]:
        """A step of each group from its first position on; earlier outputs are zeros."""
        count, states = q.shape[2], []
        outputs: dict[int, Tensor] = {}
        for first, members, state in zip(self.firsts, self.rows, self.states, strict=True):
            skipped = max(0, first - self.length)
            if skipped < count:
                select = partial(_select, rows=members, first=skipped)
                q_rows, k_rows, v_rows, inputs_rows = map_tensors(select, q, k, v, inputs)
                out, state = advance(q_rows, k_rows, v_rows, state, **inputs_rows)
                outputs |= zip(members, F.pad(out, (0, 0, skipped, 0)).unbind(), strict=True)
            states.append(state)
        width = next((out.shape[-1] for out in outputs.values()), (q if v is None else v).shape[-1])
        zeros = q.new_zeros(q.shape[1], count, width)
        rows = torch.stack([outputs.get(b, zeros) for b in range(len(q))])
        return rows, replace(self, states=tuple(states), length=self.length + count)

    def append(self, k: Tensor, v: Tensor) -> "StatesByStart":
        """The states of caches after new keys and values."""
        states = []
        for first, members, state in zip(self.firsts, self.rows, self.states, strict=True):
            skipped = max(0, first - self.length)
            if skipped < k.shape[2]:
                state = state.append(*(_select(x, members, skipped) for x in (k, v)))
            states.append(state)
        return replace(self, states=tuple(states), length=self.length + k.shape[2])

    def select_rows(self, rows: Sequence[int], select: Callable[[Any, int, Sequence[int]], Any]) -> "StatesByStart":
        """A copy with these rows of the batch, in this order; rows may be repeated. select: copies rows of a state."""
        firsts, members, states = [], [], []
        for first, group, state in zip(self.firsts, self.rows, self.states, strict=True):
            positions = [position for position, row in enumerate(rows) if row in group]
            if positions:
                firsts.append(first)
                members.append(tuple(positions))
                states.append(select(state, len(group), [group.index(rows[p]) for p in positions]))
        return replace(self, firsts=tuple(firsts), rows=tuple(members), states=tuple(states))


def _select(x: Tensor, rows: Sequence[int], first: int) -> Tensor:
    return x[list(rows), :, first:]
