"""The memory that objects refer to, found by following their references."""

from __future__ import annotations

import ctypes
import gc
import zlib
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

_NOT_FOLLOWED = (ModuleType, type, CodeType, BuiltinFunctionType, str, torch.UntypedStorage)


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
        if buffer := _find_buffer(item):
            buffers.update([buffer])
        if isinstance(item, FunctionType):
            pending += [item.__closure__, item.__defaults__, item.__kwdefaults__, item.__dict__]
        else:
            pending += gc.get_referents(item)
    return buffers


def checksum_buffers(buffers: dict[int, int]) -> dict[int, int]:
    """A checksum of the contents of each buffer in this process's memory, by address."""
    return {at: zlib.crc32((ctypes.c_char * size).from_address(at)) for at, size in buffers.items() if size}


def _find_buffer(item: Any) -> tuple[int, int] | None:
    """The address and the bytes of an object's memory; of a tensor, those of its whole storage."""
    if isinstance(item, Tensor):
        storage = item.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    if hasattr(type(item), "__array_interface__"):
        return item.__array_interface__["data"][0], item.nbytes
    if isinstance(item, bytearray) and item:
        return ctypes.addressof(ctypes.c_char.from_buffer(item)), len(item)
    return None
