"""Growth is measured unless calls are compiled."""

from __future__ import annotations

from toy_mechanisms import Shrinking

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
