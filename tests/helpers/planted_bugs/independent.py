"""Bugs whose author had read the guide for adding a mechanism and the mechanisms, but none of the checks.

The share that the checks found before any was changed estimates that of unknown bugs. Each is one mistake in one
mechanism, its host.
"""

from __future__ import annotations

from collections.abc import Callable

from efficient_attn.testing.subject import Subject

from .methods import Methods
from .planting import Mutant, planter

plant = planter("independent")


def hosted(bugs: list[Mutant], host: str) -> Callable[..., Callable[[Methods], Methods]]:
    """A decorator of the methods of a bug of one host, which adds the bug to ``bugs``; it takes the bug's name, its
    meaning, and the checks to run first."""

    def why_not(subject: Subject) -> str | None:
        return None if subject.source == host else f"it is a bug of {host}"

    def name(name: str, meaning: str, *suspects: str) -> Callable[[Methods], Methods]:
        def add(methods: Methods) -> Methods:
            bugs.append(plant(name, meaning, methods, harmless=why_not, suspects=suspects))
            return methods

        return add

    return name
