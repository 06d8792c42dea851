"""Left padding in decoding: a decode state stores the first position of each row of its batch."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError, UsageError
from .call_checks import CheckedMechanism
from .left_padding import StatesByStart
from .mask import CAUSAL, INTEGER_DTYPES, Mask, zero_invalid
from .shapes import Inputs, Values, map_tensors


@dataclass(frozen=True)
class RowStarts:
    """The first position of each row, ``first [B]``; earlier ones are padding. last: the largest of them, known to the
    host, so that later steps need no mask."""

    first: Tensor
    last: int

    def valid_or_none(self, position: int, size: int) -> Tensor | None:
        """``[B, size]`` bool, whether a row has begun at positions from ``position`` on; None where all have."""
        if position >= self.last:
            return None
        return torch.arange(position, position + size, device=self.first.device) >= self.first[:, None]


def make_row_starts(starts: Tensor, batch: int, max_len: int, device: torch.device | str) -> RowStarts:
    """Check starts. Raises `UsageError` unless they are ``batch`` whole numbers from 0 to below max_len."""
    if not isinstance(starts, Tensor) or starts.dtype not in INTEGER_DTYPES or starts.shape != (batch,):
        raise UsageError(f"init_state: starts must be {batch} whole numbers in a tensor, each row's first position")
    if starts.is_meta:
        return RowStarts(starts, max_len)
    low, high = (int(x) for x in starts.aminmax())
    if low < 0 or high >= max_len:
        raise UsageError(f"init_state: starts must be in [0, {max_len}), got {low if low < 0 else high}")
    return RowStarts(starts.to(device, torch.int64), high)


def make_state(
    attn: CheckedMechanism,
    new_state: Callable[[int, int], Any],
    batch: int,
    max_len: int,
    starts: Tensor | None,
    device: torch.device | str,
) -> Any:
    """An empty state, with the starts of its rows or one for each start. Raises `UnsupportedError` for starts of
    mechanisms without padding, and `UsageError` unless starts are positions."""
    if starts is None:
        return new_state(batch, max_len)
    row_starts = make_row_starts(starts, batch, max_len, device)
    if not attn.traits.padding:
        raise UnsupportedError(f"{attn.label} does not support starts: it does not support padding")
    state = new_state(batch, max_len)
    if explain_no_starts(attn, state) is None:
        return replace(state, starts=row_starts)
    if starts.is_meta:
        raise UnsupportedError(f"{attn.label} needs starts with values, to make a state for each")
    return StatesByStart.create(new_state, starts.tolist(), max_len)


def explain_no_starts(attn: CheckedMechanism, state: Any) -> str | None:
    """Why the mechanism's own steps do not support starts with this state; None if they do."""
    defining_class = next(kind for kind in type(attn).__mro__ if vars(kind).keys() & {"advance", "why_no_starts"})
    if "why_no_starts" not in vars(defining_class):  # an inherited declaration is about other steps
        return f"{defining_class.__name__} has its own steps, and does not declare that they support padding"
    if reason := attn.why_no_starts():
        return reason
    if not attn.traits.padding or "key_mask" not in attn.known_mask_fields:
        return "it does not support padding"
    has_starts_field = is_dataclass(state) and any(f.name == "starts" for f in fields(state))
    return None if has_starts_field else f"its {type(state).__name__} has no field for them"


def make_step_mask(starts: RowStarts | None, length: int, first: int = 0) -> Mask:
    """The mask of a step over the keys at positions from ``first`` to before ``length``."""
    key_valid = None if starts is None else starts.valid_or_none(first, length - first)
    return CAUSAL if key_valid is None else Mask(causal=True, key_mask=key_valid)


def advance_from_starts(
    advance: Callable[..., tuple[Tensor, Any]], q: Tensor, k: Tensor, v: Values, state: Any, inputs: Inputs
) -> tuple[Tensor, Any]:
    """Run a step. Queries, keys, values and outputs before the start of their row are zeros."""
    if isinstance(state, StatesByStart):
        return state.advance(advance, q, k, v, inputs)
    starts = getattr(state, "starts", None)
    valid = None if starts is None else starts.valid_or_none(state.length, q.shape[2])
    if valid is None:
        return advance(q, k, v, state, **inputs)
    q, k, v, inputs = map_tensors(partial(zero_invalid, valid=valid), q, k, v, inputs)
    out, next_state = advance(q, k, v, state, **inputs)
    return zero_invalid(out, valid), next_state
