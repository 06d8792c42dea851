"""The plan: the parts of a suite that are asked for by their names."""

from __future__ import annotations

import pytest
import tiny_suites

from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.errors import UsageError


def test_parts_may_have_commas_in_their_names() -> None:
    def find(*asked: str) -> list[str]:
        cases = make_plan(tiny_suites.load_suite("linear"), Overrides(parts=asked, variants=["linear"]))
        return list(dict.fromkeys(case.group.part for case in cases))

    assert find("growth, causal") == find("growth,causal") == ["growth, causal"]
    assert find("growth", "decoding") == find("decoding,growth") == ["growth", "decoding"]
    with pytest.raises(UsageError, match="unknown part 'causal'; did you mean 'growth, causal'"):
        find("growth", "causal")  # two names are not one
