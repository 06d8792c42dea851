"""Declarations of growth that differ from the measured growth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from efficient_attn.contract.mechanism import Attention
from efficient_attn.testing.checks.growth_claims import FAR, SLACK, growth_exponent
from efficient_attn.testing.subject import Subject

from .methods import Methods
from .planting import planter

plant = planter("growth", "growth_is_measured")


def _declares(**fields: Any) -> Methods:
    """Methods with a changed declaration of growth."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        def growth(self: Attention) -> Any:
            return replace(cls.growth.__get__(self), **fields)

        return {"growth": property(growth)}

    return methods


def _not_quadratic(subject: Subject) -> str | None:
    """Also where a large linear part hides the quadratic one, as with selected blocks of 16 times 64 keys."""
    if "N^2" in subject.attn.growth.time and _find_exponent(subject) > 1 + SLACK:
        return None
    return "it does no more work than would be declared"


def _find_exponent(subject: Subject) -> float:
    return growth_exponent(*(subject.attn.growth.cost(n, n, subject.causalities[0]) for n in FAR))


def _hardly_grows(subject: Subject) -> str | None:
    """Whether a large constant part hides the growth, as with 400 landmarks of narrow heads."""
    return "its work hardly grows at the tested lengths" if _find_exponent(subject) <= SLACK else None


BUGS = (
    plant("constant_time", "time is declared as O(1)", _declares(time="O(1)"), harmless=_hardly_grows),
    plant("constant_memory", "memory is declared as O(1)", _declares(memory="O(1)")),
    plant("constant_cost", "the cost does not grow", _declares(cost=lambda n, m, causal: 1.0)),
    plant("linear_words", "quadratic time is declared as O(N)", _declares(time="O(N)"), harmless=_not_quadratic),
    plant("linear_cost", "the cost of quadratic work is linear", _declares(cost=lambda n, m, causal: float(n + m)),
          harmless=_not_quadratic),
)  # fmt: skip
