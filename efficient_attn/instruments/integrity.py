"""Detect and undo replacements of functions on which measurements depend.

`record_integrity` records the functions, classes, methods and constants of the packages that measure, and of the
mechanisms and kernels that are measured, with the parts of ``time`` and torch that their code names. It is called
before plug-ins are imported. The recorded objects are compared after each sample.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKAGES = (
    *("instruments", "engines", "bench", "results", "contract", "spec", "garbage"),
    *("variants", "kernels", "registry", "patterns", "feature_maps"),
)
OWN_MODULES = tuple(f"{__name__.partition('.')[0]}.{package}" for package in PACKAGES)
CLOCK_FUNCTIONS = ("perf_counter", "perf_counter_ns", "process_time", "thread_time", "monotonic", "time")
TORCH_OWNERS = (torch, Tensor, F, nn.Module, torch.autograd, torch.autograd.Function, torch.cuda)
FUSED_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
REPLACED_BY_TORCH = ("manual_seed", "__init__", "__setstate__")  # when it imports torch._dynamo, or first compiles
OPERATORS = ("__add__", "__sub__", "__mul__", "__truediv__", "__matmul__", "__getitem__", "__deepcopy__", "__call__")
DESCRIPTORS = (FunctionType, property, staticmethod, classmethod, cached_property)
CONSTANTS = (int, float, str, tuple, dict, frozenset)

UNRECORDED_MODULES = ("typing", "collections.abc", "collections", "dataclasses")  # whose names annotate

_get_code = attrgetter("__code__")


@dataclass(frozen=True)
class RecordedNamespace:
    """Recorded names of a module or class, with their values, and names that only a base class has.

    names: the owner's current namespace. codes: of the functions among the values, which can be replaced in place.
    """

    owner: Any
    names: Mapping[str, Any]
    values: dict[str, Any]
    inherited: frozenset[str]
    codes: dict[FunctionType, CodeType]

    def list_replaced(self) -> Iterator[tuple[str, Any]]:
        """The name and the current value of each replacement; None for a deleted name."""
        yield from ((key, self.names.get(key)) for key, x in self.values.items() if self.names.get(key) is not x)
        yield from ((f.__name__, f) for f, code in self.codes.items() if f.__code__ is not code)
        yield from ((key, self.names[key]) for key in self.inherited if key in self.names)

    def restore(self) -> None:
        """Restore what was replaced."""
        for function, code in self.codes.items():
            if function.__code__ is not code:
                function.__code__ = code
        for key, value in self.values.items():
            if self.names.get(key) is not value:
                setattr(self.owner, key, value)
        for key in self.inherited & self.names.keys():
            delattr(self.owner, key)


class Snapshot:
    """All recorded objects in sequences that are compared without running Python code: 0.2 ms for 6,000 of them.

    Identities are compared, because a replacement may define its equality.
    """

    def __init__(self, namespaces: Iterable[RecordedNamespace]) -> None:
        namespaces = list(namespaces)
        recorded = [n for n in namespaces if n.values]
        keys = [(*n.values, next(iter(n.values))) for n in recorded]  # twice, as one key alone gives no tuple
        self.getters, self.names = [itemgetter(*k) for k in keys], [n.names for n in recorded]
        self.values = tuple(n.values[key] for n, ks in zip(recorded, keys, strict=True) for key in ks)
        codes = {function: code for n in recorded for function, code in n.codes.items()}
        self.functions, self.codes = tuple(codes), tuple(codes.values())
        self.inherited = [(n.inherited, n.names.keys()) for n in namespaces if n.inherited]

    def is_intact(self) -> bool:
        """Whether nothing was replaced."""
        try:
            current = chain.from_iterable(map(itemgetter.__call__, self.getters, self.names))
            if not all(map(is_, current, self.values)):
                return False
        except KeyError:  # a name was deleted
            return False
        return all(map(is_, map(_get_code, self.functions), self.codes)) and all(
            names.isdisjoint(inherited) for inherited, names in self.inherited
        )


_recorded: dict[int, RecordedNamespace] = {}  # by the owner's identity
blamed: dict[str, str] = {}  # why all results of a mechanism are invalid, because of the import of its plug-in
_snapshot = Snapshot(())


def record_integrity() -> None:
    """Record the modules and classes that exist now and were not recorded before."""
    global _snapshot
    modules = [m for n, m in list(sys.modules.items()) if n.startswith(OWN_MODULES) and isinstance(m, ModuleType)]
    modules = [
        m for m in modules if not getattr(m.__spec__, "_initializing", False)
    ]  # one may be calling this function
    new_modules = [module for module in modules if id(module) not in _recorded and _list_members(module)]
    if not new_modules:
        return
    for module in new_modules:
        _record(module, _list_members(module))
        for cls in (x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__):
            _record(cls, _list_members(cls), _list_inherited(cls))
    _record_torch(_collect_names(code for n in _recorded.values() for code in n.codes.values()))
    _snapshot = Snapshot(_recorded.values())


def describe_replacement() -> str | None:
    """A description of the first replacement; None if there is none."""
    if _snapshot.is_intact():
        return None
    for namespace in _recorded.values():
        for name, current in namespace.list_replaced():
            owner = namespace.owner
            path = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
            return f"it replaced {path}.{name} by its own ({_describe_origin(current)})"
    return None


def restore() -> None:
    """Restore what was replaced."""
    for namespace in _recorded.values():
        namespace.restore()


def _list_members(owner: Any) -> dict[str, Any]:
    """A module's functions, classes and constants, or a class's methods."""
    if isinstance(owner, type):
        return {name: x for name, x in vars(owner).items() if isinstance(x, DESCRIPTORS)}
    return {
        name: x
        for name, x in vars(owner).items()
        if (callable(x) and getattr(x, "__module__", None) not in UNRECORDED_MODULES)
        or (name.isupper() and isinstance(x, CONSTANTS))
    }


def _list_inherited(cls: type) -> frozenset[str]:
    """The methods of a class's bases that it does not define: defining one later would replace them."""
    names = {name for base in cls.__mro__[1:-1] for name in _list_members(base)}
    return frozenset(names - vars(cls).keys())


def _collect_names(codes: Iterable[CodeType]) -> set[str]:
    """All names that code and the functions within it refer to."""
    pending = list(codes)
    names: set[str] = set(OPERATORS)
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names.difference(REPLACED_BY_TORCH)


def _record_torch(names: set[str]) -> None:
    """Record the clock, and those of torch's functions and methods that have these names."""
    _record(time, {name: getattr(time, name) for name in CLOCK_FUNCTIONS})
    operators = {name: getattr(torch.ops.aten, name) for name in (FUSED_ATTENTION, f"{FUSED_ATTENTION}_backward")}
    _record(torch.ops.aten, operators)
    for owner in TORCH_OWNERS:
        named = {name: x for name, x in vars(owner).items() if name in names}
        members = {name: x for name, x in named.items() if callable(x) or isinstance(x, DESCRIPTORS)}
        inherited = frozenset(n for n in names - vars(owner).keys() if isinstance(owner, type) and hasattr(owner, n))
        _record(owner, members, inherited)


def _record(owner: Any, members: Mapping[str, Any], inherited: frozenset[str] = frozenset()) -> None:
    if earlier := _recorded.get(id(owner)):  # what was replaced in the meantime must not count as original
        members, inherited = {**members, **earlier.values}, earlier.inherited | (inherited - members.keys())
    codes = {x: x.__code__ for x in members.values() if isinstance(x, FunctionType)}
    codes |= earlier.codes if earlier else {}
    _recorded[id(owner)] = RecordedNamespace(owner, vars(owner), dict(members), inherited, codes)


def _describe_origin(value: Any) -> str:
    """The file and line of a function, or the type of another object."""
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}" if code else f"{type(value).__name__}"
