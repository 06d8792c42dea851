"""A planted bug: the methods that it replaces, the traits that it violates, and how it is planted in a mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Dims
from efficient_attn.testing.probing import other_instances
from efficient_attn.testing.subject import Subject

_numbers = count()
_made: WeakValueDictionary[int, type[Attention]] = WeakValueDictionary()


def subclass(cls: type[Attention], methods: dict[str, Any]) -> type[Attention]:
    """A subclass with these methods. Without this, checks that pickle would detect every planted bug."""
    number = next(_numbers)

    def reduce(self: Attention, protocol: Any) -> tuple[Any, ...]:
        return _revive, (number,), *object.__reduce_ex__(self, protocol)[2:]

    made = type(cls.__name__, (cls,), {"__reduce_ex__": reduce, **methods})
    _made[number] = made
    return made


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A decode state (nested dataclasses and tuples) with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: map_tensors(getattr(value, f.name), change) for f in fields(value)})
    if isinstance(value, tuple):
        changed = [map_tensors(x, change) for x in value]
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    return value


def _revive(number: int) -> Attention:
    kind = _made[number]
    return kind.__new__(kind)


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    methods: from a class, the methods that replace its own. needs: the traits that must be declared. harmless: a reason
    why the bug changes nothing in a mechanism, or None. suspects: checks to run first. kind: the group of
    bugs. thorough: whether only all drawn calls are sure to have what it needs.
    """

    name: str
    meaning: str
    methods: Callable[[type[Attention]], dict[str, Any]]
    needs: tuple[str, ...] = ()
    harmless: Callable[[Subject], str | None] = lambda subject: None
    suspects: tuple[str, ...] = ()
    kind: str = "classics"
    thorough: bool = False

    def why_not(self, subject: Subject) -> str | None:
        """Why the bug cannot be planted in a mechanism; None when it can."""
        for trait in self.needs:
            if not getattr(subject.traits, trait):
                return f"{trait} is not declared"
        if subject.attn.backend == "dense":
            return "it has no fast implementation"
        return self.harmless(subject)

    def planted(self, subject: Subject) -> Subject:
        """The same mechanism with the bug, in all its instances, which share what a bug stores."""
        return replace(self._plant(subject, {}), thorough=self.thorough)

    def _plant(self, subject: Subject, planted_classes: dict[type[Attention], type[Attention]]) -> Subject:
        def factory(dims: Dims, seed: int, backend: str | None) -> Attention:
            attn = subject.new(dims, seed, backend)
            cls = type(attn)
            if cls not in planted_classes:
                planted_classes[cls] = subclass(cls, self.methods(cls))
            attn.__class__ = planted_classes[cls]
            return attn

        others = tuple(self._plant(replace(other, others=()), planted_classes) for other in other_instances(subject))
        return replace(subject, source=factory, others=others)


def planter(kind: str, *suspects_by_default: str, thorough: bool = False) -> Callable[..., Mutant]:
    """A constructor of bugs of one kind, with default checks to run first."""

    def plant(
        name: str,
        meaning: str,
        methods: Callable[[type[Attention]], dict[str, Any]],
        needs: tuple[str, ...] = (),
        harmless: Callable[[Subject], str | None] = lambda subject: None,
        suspects: tuple[str, ...] = suspects_by_default,
    ) -> Mutant:
        return Mutant(name, meaning, methods, needs, harmless, suspects, kind, thorough)

    return plant


def of_family(
    family: str, harmless: Callable[[Subject], str | None] = lambda s: None
) -> Callable[[Subject], str | None]:
    """Why a bug of one family does not apply; None if the mechanism belongs to it."""

    def why_not(subject: Subject) -> str | None:
        is_member = f"variants.{family}." in type(subject.attn).__module__
        return harmless(subject) if is_member else f"it does not belong to the family {family}"

    return why_not
