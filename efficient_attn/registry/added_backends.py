"""Backends that others add to mechanisms, as subclasses that compute with their function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from ..contract.mechanism import Attention
from ..contract.shapes import CallFacts, Shape
from ..contract.traits import Traits
from ..errors import UsageError, make_unknown_error
from .entries import ADDED_BACKENDS, class_of

# what a function may not support: traits that it can lack without being another mechanism
OPTIONAL_TRAITS = ("bidirectional", "causal", "cross", "deterministic", "dropout", "gradient", "grouped", "padding")


@dataclass(frozen=True, kw_only=True)
class AddedBackend:
    """A backend of a mechanism, and the traits that it lacks. step: its decode steps, if it has any."""

    mechanism: str
    name: str
    function: Callable[..., Tensor]
    step: Callable[..., tuple[Tensor, Any]] | None
    lacks: tuple[str, ...]


class _Added(Attention):
    """The part of such a subclass that is the same for all."""

    added: ClassVar[AddedBackend]
    _narrowed: tuple[Traits, Traits] | None = None  # the mechanism's traits, and those without what the backend lacks

    @property
    def traits(self) -> Traits:
        traits = super().traits
        if self._narrowed is None or self._narrowed[0] is not traits:
            self._narrowed = traits, replace(traits, **dict.fromkeys(self.added.lacks, False))
        return self._narrowed[1]

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, **inputs: Tensor) -> Tensor:
        return type(self).added.function(self, q, k, v, mask, **inputs)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        step = type(self).added.step
        if step is None or self.backend == "dense":
            return super().advance(q, k, v, state, **inputs)
        return step(self, q, k, v, state, **inputs)

    def what_runs(self, shape: Shape, **call: Unpack[CallFacts]) -> tuple[str, int | None]:
        return self.backend, None

    def why_not(self, backend: str) -> str | None:
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:  # the class has no name of its own
        return _make_empty, (self.added.mechanism, self.added.name), self.__getstate__()


def _make_empty(mechanism: str, backend: str) -> Attention:
    cls = class_of(mechanism, backend)
    return cls.__new__(cls)


def register_backend(
    mechanism: str,
    name: str,
    function: Callable[..., Tensor],
    /,
    *,
    step: Callable[..., tuple[Tensor, Any]] | None = None,
    only_on: str | None = None,
    only_dtypes: Sequence[torch.dtype] = (),
    lacks: Sequence[str] = (),
) -> None:
    """Add a backend to a mechanism, which then runs as ``mechanism:backend=name``: verified against the mechanism's
    reference, checked, timed and named in rows as its own backends are.

    function: called as ``function(attn, q, k, v, mask, **inputs)`` with what `Attention.compute` gets, and the instance
    with its options. step: called as ``step(attn, q, k, v, state, **inputs)`` for `Attention.advance`, with the
    mechanism's decode state; without it the backend does not decode. only_on: the type of device. only_dtypes: all that
    it supports, if not all. lacks: traits of the mechanism that it does not support, such as ``gradient``. Raises
    `UsageError` for a name that exists, or an unknown mechanism or trait.
    """
    base, where = class_of(mechanism), f"register_backend({mechanism!r}, {name!r})"
    for candidate in (function, *([] if step is None else [step])):
        if not inspect.isfunction(candidate):  # whose file is part of what rows depend on
            raise UsageError(f"{where}: needs Python functions, not {candidate!r}; call it in one of your own")
    if not name.isidentifier() or name in (*base.backends, *base.renamed):
        raise UsageError(f"{where}: a backend needs a new name of letters, digits and underscores")
    existing = ADDED_BACKENDS.get((mechanism, name))
    if existing and inspect.getmodule(existing.added.function) is not inspect.getmodule(function):
        raise UsageError(f"{where}: another module has already added this backend")
    for trait in lacks:
        if trait not in OPTIONAL_TRAITS:
            raise make_unknown_error("trait", trait, OPTIONAL_TRAITS, where=where)
    absent = (*lacks, *(() if step else ("decode",)))
    members = {
        "__module__": function.__module__,
        "__doc__": base.__doc__,
        "added": AddedBackend(mechanism=mechanism, name=name, function=function, step=step, lacks=absent),
        "backends": (name, "dense"),
        "only_on": {name: only_on} if only_on else {},
        "only_dtypes": {name: tuple(only_dtypes)} if only_dtypes else {},
    }
    ADDED_BACKENDS[mechanism, name] = type(base.__name__, (_Added, base), members)
