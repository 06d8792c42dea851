"""Limits of memory of a session: of the processor and of a GPU, for one case and for several together."""

from __future__ import annotations

import pytest

from efficient_attn.bench.measuring.conditions import Conditions
from efficient_attn.engines.local import LocalEngine

INLINE = LocalEngine("inline")


@pytest.mark.parametrize(
    ("device", "cases", "limit"),
    [("cpu", None, 40), ("cpu", 1, 40), ("cpu", 2, 80), ("cpu", 3, 90), ("cuda", None, 70), ("cuda", 3, 210)],
)
def test_a_requested_limit_holds_for_each_case(device: str, cases: int | None, limit: int) -> None:
    conditions = Conditions(engine=INLINE, memory_bytes=40, available_bytes=90, gpu_bytes=70)
    assert conditions.limit_memory(device, cases) == limit


@pytest.mark.parametrize("cases", [None, 4])
def test_a_gpu_has_no_limit_by_default(cases: int | None) -> None:
    conditions = Conditions(engine=INLINE, memory_bytes=40, available_bytes=40)
    assert conditions.limit_memory("cuda", cases) is None
    assert Conditions(engine=INLINE).limit_memory("cpu", cases) is None
