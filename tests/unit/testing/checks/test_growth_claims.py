"""Growth is measured where operations can be seen, and not where they are compiled."""

from __future__ import annotations

from toy_mechanisms import Shrinking

from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks import growth_claims


def test_what_compiles_its_own_calls_is_not_watched() -> None:
    """Seen by nobody while it is watched, it would not be compiled in this process again."""

    class Compiling(Shrinking):
        @property
        def compiles(self) -> bool:
            return True

        def compute(self, *args: object, **inputs: object) -> object:  # type: ignore[override]
            raise AssertionError("it was called")

    watched, left = (
        run_check(growth_claims.growth_is_measured, Subject(lambda *_, c=c: c())) for c in (Shrinking, Compiling)
    )
    assert watched.status == "failed"
    assert left.status == "not_claimed"
    assert "compiled" in left.reason
