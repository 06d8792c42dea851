"""A planted bug: what it changes, which trait that breaks, and how it is planted in a mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

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


def _revive(number: int) -> Attention:
    kind = _made[number]
    return kind.__new__(kind)


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    methods: given the class that is mutated, the methods that replace its own. needs: the traits that it breaks.
    harmless: why it changes nothing for some mechanism. suspects: checks to run first. kind: of bug.
    """

    name: str
    meaning: str
    methods: Callable[[type[Attention]], dict[str, Any]]
    needs: tuple[str, ...] = ()
    harmless: Callable[[Subject], str | None] = lambda subject: None
    suspects: tuple[str, ...] = ()
    kind: str = "classics"

    def why_not(self, subject: Subject) -> str | None:
        """Why the bug cannot be planted in a mechanism; None when it can."""
        for trait in self.needs:
            if not getattr(subject.traits, trait):
                return f"{trait} is not declared"
        if subject.attn.backend == "dense":
            return "it runs its reference"
        return self.harmless(subject)

    def planted(self, subject: Subject) -> Subject:
        """The same mechanism with the bug, in all its instances, which share what a bug stores."""
        return self._plant(subject, {})

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


def planter(kind: str, *usual: str) -> Callable[..., Mutant]:
    """A function that makes bugs of a kind, with the checks to run first if a bug names none."""

    def plant(
        name: str,
        meaning: str,
        methods: Callable[[type[Attention]], dict[str, Any]],
        needs: tuple[str, ...] = (),
        harmless: Callable[[Subject], str | None] = lambda subject: None,
        suspects: tuple[str, ...] = usual,
    ) -> Mutant:
        return Mutant(name, meaning, methods, needs, harmless, suspects, kind)

    return plant
