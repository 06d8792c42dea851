"""Growth is measured unless calls are compiled."""

from __future__ import annotations

from dataclasses import replace

from toy_mechanisms import Shrinking

import efficient_attn as ea
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks import growth_claims


def test_compiled_calls_are_not_counted() -> None:
    """A first call under a dispatch mode would disable compilation for the rest of the process."""

    class Compiling(Shrinking):
        @property
        def compiles(self) -> bool:
            return True

        def compute(self, *args: object, **inputs: object) -> object:  # type: ignore[override]
            raise AssertionError("it was called")

    counted, compiled = (
        run_check(growth_claims.growth_is_measured, Subject(lambda *_, c=c: c())) for c in (Shrinking, Compiling)
    )
    assert counted.status == "failed"
    assert compiled.status == "not_claimed"
    assert "compiled" in compiled.reason


def test_an_understated_cost_is_detected_below_a_large_constant_part() -> None:
    """With 100 landmarks the pseudo-inverse hides the growth with length, which alone would not contradict the cost."""
    subject = Subject("nystromformer:n_landmarks=100")
    growth = subject.attn.growth

    class Understated(type(subject.attn)):
        @property
        def growth(self) -> ea.Growth:
            return replace(growth, cost=lambda n, m, causal: growth.cost(n, m, causal) / 1000)

    def make(dims: ea.Dims, seed: int, backend: str | None) -> ea.Attention:
        attn = ea.create("nystromformer:n_landmarks=100", dims=dims, seed=seed, backend=backend)
        attn.__class__ = Understated
        return attn

    outcome = run_check(growth_claims.growth_is_measured, Subject(make))
    assert outcome.status == "failed"
    assert "times the work of growth.cost" in outcome.reason
    assert run_check(growth_claims.growth_is_measured, subject).status != "failed"
