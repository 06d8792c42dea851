"""The memory of a decode state, including what a mechanism keeps outside of the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import units
from ...contract.mechanism import Attention
from ...instruments.memory import COUNTED_DEVICES, measure_allocated
from ...instruments.reachable_memory import checksum_buffers, find_buffers

MIN_OUTSIDE_SHARE, MIN_OUTSIDE_BYTES = 0.2, 2**10  # of the whole, from which memory outside of a state is reported


@dataclass(frozen=True)
class HeldState:
    """The bytes that a context leaves allocated in total, and those of them that are not in the state's tensors."""

    total: int
    outside: int = 0

    @property
    def reason(self) -> str | None:
        """A sentence about memory outside of the state, if there is much."""
        if self.outside < max(MIN_OUTSIDE_SHARE * self.total, MIN_OUTSIDE_BYTES):
            return None
        held, total = units.size(self.outside), units.size(self.total)
        return f"{held} of its {total} of decode state are outside of the state: in the mechanism or in globals"


def measure_held_state(attn: Attention, absorb: Callable[[], Any], *, device: str) -> HeldState:
    """The size of the decode state that ``absorb`` returns, with all keys and values of a context.

    Memory counts that can be reached from the state, or from the mechanism if it is new or its contents have changed.
    If much more was allocated, and is still allocated, all of it counts. This has to be the mechanism's first call in
    the process, because memory that earlier calls have left may be reused.
    """
    checksum = checksum_buffers if device == "cpu" else dict[int, int]  # other memory cannot be read
    before = checksum(find_buffers(attn))
    state, allocated = measure_allocated(absorb, device=device) if device in COUNTED_DEVICES else (absorb(), 0)
    in_state, in_mechanism = find_buffers(state), find_buffers(attn)
    current = checksum(in_mechanism)
    new = {at: size for at, size in in_mechanism.items() if current.get(at) != before.get(at)}
    total = sum((in_state | new).values())
    if allocated - total >= max(MIN_OUTSIDE_SHARE * allocated, MIN_OUTSIDE_BYTES):
        total = allocated
    return HeldState(total, total - sum(in_state.values()))
