"""Planning: selection of parts of a suite by name."""

from __future__ import annotations

import pytest
import tiny_suites

from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.errors import UsageError


def test_names_of_parts_may_contain_commas() -> None:
    def plan_parts(*names: str) -> list[str]:
        cases = make_plan(tiny_suites.load_suite("linear"), Overrides(parts=names, variants=["linear"]))
        return list(dict.fromkeys(case.group.part for case in cases))

    assert plan_parts("growth, causal") == plan_parts("growth,causal") == ["growth, causal"]
    assert plan_parts("growth", "decoding") == plan_parts("decoding,growth") == ["growth", "decoding"]
    with pytest.raises(UsageError, match="unknown part 'causal'; did you mean 'growth, causal'"):
        plan_parts("growth", "causal")  # separate names are not joined
