"""Rows of a batch that begin later than others: left padding of decode states, kept as each row's first position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError, UsageError
from .call_checks import Checked
from .mask import CAUSAL, Mask, blank
from .shapes import Values

WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class RowStarts:
    """The first position of each row, ``first [B]``; what stands before is padding. last: no row begins later, known to
    the host, so that steps beyond it need no mask."""

    first: Tensor
    last: int

    def valid(self, at: int, size: int) -> Tensor:
        """``[B, size]`` bool, True where a row has begun, of the positions from ``at`` on."""
        return torch.arange(at, at + size, device=self.first.device) >= self.first[:, None]

    def hidden(self, at: int, size: int) -> Tensor | None:
        """`valid`, or None where all of these positions are."""
        return None if at >= self.last else self.valid(at, size)


def make_starts(starts: Tensor, batch: int, max_len: int, device: torch.device | str) -> RowStarts:
    """Starts that were checked. Raises `UsageError` for others than ``batch`` whole numbers from 0 to below max_len."""
    if not isinstance(starts, Tensor) or starts.dtype not in WHOLE or starts.shape != (batch,):
        raise UsageError(
            f"init_state: starts must be {batch} whole numbers in a tensor, the first position of each row"
        )
    if starts.is_meta:
        return RowStarts(starts, max_len)
    low, high = (int(x) for x in starts.aminmax())
    if low < 0 or high >= max_len:
        raise UsageError(f"init_state: starts lie in [0, {max_len}), got {low if low < 0 else high}")
    return RowStarts(starts.to(device, torch.int64), high)


def put_starts(attn: Checked, state: Any, starts: RowStarts) -> Any:
    """A state that knows where its rows begin. Raises `UnsupportedError` where the mechanism does not serve that."""
    if reason := why_no_starts(attn, state):
        raise UnsupportedError(f"{attn.label} takes no starts: {reason}")
    return replace(state, starts=starts)


def why_no_starts(attn: Checked, state: Any) -> str | None:
    """What a mechanism says, or that nobody said it of its own steps and of such a state."""
    says = next(kind for kind in type(attn).__mro__ if vars(kind).keys() & {"advance", "why_no_starts"})
    if "why_no_starts" not in vars(says):  # what is inherited was said of other steps
        return f"{says.__name__} has its own steps, and does not say that they know of padding"
    if reason := attn.why_no_starts():
        return reason
    if not attn.traits.padding or "key_mask" not in attn.known_mask_fields:
        return "it takes no padding"
    keeps = is_dataclass(state) and any(f.name == "starts" for f in fields(state))
    return None if keeps else f"its {type(state).__name__} has no place for them"


def mask_of(starts: RowStarts | None, length: int, first: int = 0) -> Mask:
    """The mask of a step over the keys at positions from ``first`` to before ``length``."""
    hidden = None if starts is None else starts.hidden(first, length - first)
    return CAUSAL if hidden is None else Mask(causal=True, key_mask=hidden)


def advance_begun(
    advance: Callable[..., tuple[Tensor, Any]],
    q: Tensor,
    k: Tensor,
    v: Values,
    state: Any,
    inputs: Mapping[str, Tensor],
) -> tuple[Tensor, Any]:
    """A step; of rows that have not begun queries, keys, values and outputs are zeros."""
    starts = getattr(state, "starts", None)
    valid = None if starts is None else starts.hidden(state.length, q.shape[2])
    if valid is None:
        return advance(q, k, v, state, **inputs)
    blanked = {id(x): blank(x, valid) for x in (q, k, v, *inputs.values()) if x is not None}  # one tensor stays one
    blanked_inputs = {name: blanked[id(x)] for name, x in inputs.items()}
    out, after = advance(blanked[id(q)], blanked[id(k)], None if v is None else blanked[id(v)], state, **blanked_inputs)
    return blank(out, valid), after
