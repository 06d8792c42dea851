"""A planted bug: what it changes, which trait that breaks, and how it is planted in a mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..contract.mechanism import Attention
from ..contract.shapes import Dims
from .pickling import subclass
from .probing import other_instances
from .subject import Subject


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
                return f"{trait} is not claimed"
        if subject.attn.backend == "dense":
            return "it has no fast form"
        return self.harmless(subject)

    def planted(self, subject: Subject) -> Subject:
        """The same mechanism with the bug, in all its instances, which share what a bug stores."""
        return self._infect(subject, {})

    def _infect(self, subject: Subject, infected: dict[type[Attention], type[Attention]]) -> Subject:
        def factory(dims: Dims, seed: int, backend: str | None) -> Attention:
            attn = subject.new(dims, seed, backend)
            cls = type(attn)
            if cls not in infected:
                infected[cls] = subclass(cls, self.methods(cls))
            attn.__class__ = infected[cls]
            return attn

        others = tuple(self._infect(replace(other, others=()), infected) for other in other_instances(subject))
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
