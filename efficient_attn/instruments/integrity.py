"""Detect and undo replacements of measuring functions.

`record_integrity` records functions, classes and methods of this package, and those of ``time`` and torch that they
use. It is called when the measuring modules are imported, before plug-ins are. They are compared after each sample.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

PACKAGES = ("instruments", "engines", "bench", "results", "contract", "kernels.dense")
OWN_MODULES = tuple(f"{__name__.partition('.')[0]}.{package}" for package in PACKAGES)
CLOCK_FUNCTIONS = ("perf_counter", "perf_counter_ns", "process_time", "thread_time", "monotonic", "time")
TORCH_FUNCTIONS = (
    *("equal", "isfinite", "cat", "zeros_like", "no_grad", "set_grad_enabled"),
    *("get_num_threads", "get_rng_state"),
)
TENSOR_METHODS = (
    "norm", "double", "item", "clone", "detach", "copy_", "all", "data_ptr", "untyped_storage", "as_strided",
    "__add__", "__sub__", "__mul__", "__truediv__", "__getitem__", "__deepcopy__",
)  # fmt: skip


class RecordedObject(NamedTuple):
    """A name in a module or class, the owner's current namespace, the recorded object, and its code."""

    owner: Any
    name: str
    names: Mapping[str, Any]
    value: Any
    code: Any


_recorded: dict[tuple[int, str], RecordedObject] = {}


def record_integrity() -> None:
    """Record all objects that exist now and were not recorded before."""
    torch_modules = (torch.autograd, ("grad",)), (torch.cuda, ("synchronize",))
    for owner, names in ((time, CLOCK_FUNCTIONS), (torch, TORCH_FUNCTIONS), (Tensor, TENSOR_METHODS), *torch_modules):
        for name in names:
            _record(owner, name, getattr(owner, name))
    for module in [m for n, m in list(sys.modules.items()) if n.startswith(OWN_MODULES) and isinstance(m, ModuleType)]:
        for owner, name, value in _list_members(module):
            _record(owner, name, value)


def describe_replacement() -> str | None:
    """A description of the first replacement; None if there is none."""
    for owner, name, names, value, code in _recorded.values():
        current = names.get(name, value)  # inherited attributes are not in the class's own namespace
        if current is not value or (code and current.__code__ is not code):
            return f"it replaced {_describe(owner)}.{name} by its own ({_describe_origin(current)})"
    return None


def restore() -> None:
    """Restore what was replaced."""
    for owner, name, names, value, code in _recorded.values():
        if names.get(name, value) is not value:
            setattr(owner, name, value)
        if code is not None and value.__code__ is not code:
            value.__code__ = code


def _list_members(module: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    """A module's functions and classes, and the methods of those classes."""
    for name, value in list(vars(module).items()):
        if callable(value):
            yield module, name, value
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from ((value, n, v) for n, v in vars(value).items() if isinstance(v, FunctionType | property))


def _record(owner: Any, name: str, value: Any) -> None:
    code = value.__code__ if isinstance(value, FunctionType) else None
    _recorded.setdefault((id(owner), name), RecordedObject(owner, name, vars(owner), value, code))


def _describe(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


def _describe_origin(value: Any) -> str:
    """The file and line of a function, or the type of another object."""
    code = getattr(value, "__code__", None)
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}" if code else f"{type(value).__name__}"
