"""Every registered mechanism passes every check that its traits require."""

from __future__ import annotations

from functools import cache

import pytest
from specs import MARKED

from efficient_attn.testing import CHECKS, Check, Subject, run_check

subject = cache(Subject)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
@pytest.mark.parametrize("spec", MARKED)
def test_mechanism_passes_check(spec: str, check: Check) -> None:
    outcome = run_check(check, subject(spec))
    if outcome.status == "not_claimed":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason
