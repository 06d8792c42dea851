"""The memory of a decode state, including what a mechanism keeps outside of the state."""

from __future__ import annotations

import ctypes
import gc
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from ... import units
from ...contract.mechanism import Attention
from ...instruments.memory import COUNTED_DEVICES, measure_allocated

MIN_OUTSIDE_SHARE, MIN_OUTSIDE_BYTES = 0.2, 2**10  # of the whole, from which memory outside of a state is reported
_NOT_FOLLOWED = (ModuleType, type, CodeType, BuiltinFunctionType, str, torch.UntypedStorage)


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


def find_buffers(*roots: Any) -> dict[int, int]:
    """The bytes of the memory of all tensors, numpy arrays and byte arrays that can be reached, by address.

    Attributes, containers and closures are followed; modules, classes and the globals of functions are not.
    """
    buffers: dict[int, int] = {}
    visited: dict[int, Any] = {}  # by identity; the objects too, so that none is reused meanwhile
    pending: list[Any] = list(roots)
    while pending:
        item = pending.pop()
        if id(item) in visited or isinstance(item, _NOT_FOLLOWED):
            continue
        visited[id(item)] = item
        if isinstance(item, Tensor):
            buffers[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif hasattr(type(item), "__array_interface__"):
            buffers[item.__array_interface__["data"][0]] = item.nbytes
        elif isinstance(item, bytearray) and item:
            buffers[ctypes.addressof(ctypes.c_char.from_buffer(item))] = len(item)
        if isinstance(item, FunctionType):
            pending += [item.__closure__, item.__defaults__, item.__kwdefaults__, item.__dict__]
        else:
            pending += gc.get_referents(item)
    return buffers


def checksum_buffers(buffers: dict[int, int]) -> dict[int, int]:
    """A checksum of the contents of each buffer in this process's memory, by address."""
    return {at: zlib.crc32((ctypes.c_char * size).from_address(at)) for at, size in buffers.items() if size}
