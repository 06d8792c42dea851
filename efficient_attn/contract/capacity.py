"""The longest context whose decode state fits a memory budget."""

from bisect import bisect_right

import torch

from ..errors import UsageError
from .decode_state import state_bytes
from .mechanism import Attention

# a state that is equally large at MAX_CONTEXT and at MAX_CONTEXT / LENGTH_RATIO does not grow
MAX_CONTEXT, LENGTH_RATIO = 2**30, 2**10


def longest_context(
    attn: Attention, budget_bytes: int, *, batch: int = 1, dtype: torch.dtype = torch.float32
) -> int | None:
    """The most positions whose decode state, for a whole batch, fits the budget; None if any number does.

    Computed from the state's own tensors on torch's meta device, where they need no memory. 0 if not even one position
    fits. Raises `UnsupportedError` without the decode trait, and `UsageError` for a budget below one byte, or if the
    mechanism's dims do not determine the state's size.
    """
    if budget_bytes < 1:
        raise UsageError(f"longest_context: the budget must be at least 1 byte, got {budget_bytes}")

    def measure_state(positions: int) -> int:
        return state_bytes(attn.init_state(batch, positions, dtype, "meta"))

    if not measure_state(1):
        known_dims = {"heads": attn.kv_heads or attn.dims.heads, "head_dim": attn.dims.head_dim}
        missing = " and ".join(name for name, value in known_dims.items() if value is None)
        problem = f"create it with dims that set {missing}" if missing else "its dims do not determine its size"
        raise UsageError(f"longest_context: {attn.label} allocates its decode state in its first step; {problem}")
    end = 1
    while measure_state(end) <= budget_bytes:
        if end >= MAX_CONTEXT and measure_state(end) == measure_state(end // LENGTH_RATIO):
            return None
        end *= 2
    return bisect_right(range(1, end), budget_bytes, key=measure_state)
