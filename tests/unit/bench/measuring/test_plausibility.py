"""What the machine allows: impossible times are refused, but not because a look found it slow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from efficient_attn.bench.case_config import CaseConfig
from efficient_attn.bench.measuring import plausibility
from efficient_attn.bench.measuring.conditions import Conditions
from efficient_attn.bench.measuring.plausibility import (
    add_roofline,
    explain_implausible,
    list_rooflines,
    measure_roofline,
)
from efficient_attn.engines.job import WorkerDied
from efficient_attn.instruments.roofline import CacheLevel, Roofline

SETTING = ("cpu", "float32", 1)
CACHES = (CacheLevel("L2", 2**20, 4e10), CacheLevel("L3", 2**25, 2e10))
BEST = Roofline(1e11, 1e10, "torch.mm 512x512x512 float32", "sum of 256 MiB", CACHES)
PLACE = CaseConfig(seq_len=16, max_len=16, threads=1)
COLD = CaseConfig(seq_len=16, max_len=16, threads=1, cache="cold")


class _Engine:
    """Looks at the machine in which it is told what is found; each answer once, the last again and again."""

    def __init__(self, *answers: Roofline | WorkerDied) -> None:
        self.answers, self.jobs = list(answers), list[Any]()

    def run(self, job: Any) -> Iterator[Any]:
        self.jobs.append(job)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, WorkerDied):
            raise answer
        if job.canary:
            yield {"ok": True}
        for dtype, threads in job.settings:
            yield dtype, threads, answer


def _conditions(*answers: Roofline | WorkerDied, best: Roofline = BEST) -> Any:
    engine: Any = _Engine(*(answers or (best,)))
    found = Conditions(engine=engine)
    add_roofline(SETTING, "before", best, found)
    return SimpleNamespace(engine=engine, found=found)


def _explain(
    flops: float, size: int, seconds: float, place: CaseConfig = PLACE, *answers: Roofline | WorkerDied
) -> str | None:
    return explain_implausible(flops, size, seconds, place, _conditions(*answers).found)


def test_a_quarter_above_the_ceiling_is_allowed_and_no_more() -> None:
    assert _explain(1e11, 0, 1 / 1.24) is None
    assert _explain(1e11, 0, 1 / 1.26) == (
        "faster than this machine computes: at least 126 GFLOP/s, the roofline is 100 "
        "(torch.mm 512x512x512 float32), and 1.25 times that is allowed"
    )


@pytest.mark.parametrize(
    ("size", "place", "seconds", "holder"),
    [
        (2**20, PLACE, 2**20 / 4e10, "L2"),
        (2**24, PLACE, 2**20 / 4e10 + (2**24 - 2**20) / 2e10, "L3"),
        (2**27, PLACE, 2**20 / 4e10 + 2**25 / 2e10 + (2**27 - 2**25 - 2**20) / 1e10, "memory"),
        (2**20, COLD, 2**20 / 1e10, "memory"),
    ],
)
def test_reading_is_held_against_what_holds_the_bytes(
    size: int, place: CaseConfig, seconds: float, holder: str
) -> None:
    assert _explain(1.0, size, seconds / 1.24, place) is None
    reason = _explain(1.0, size, seconds / 1.26, place) or ""
    assert "faster than this machine reads: at least " in reason
    assert f"({holder})" in reason
    assert f"the roofline is {size / seconds / 1e9:.4g}" in reason


def test_without_a_ceiling_nothing_is_refused() -> None:
    assert explain_implausible(1e30, 1, 1.0, PLACE, Conditions()) is None
    assert explain_implausible(1e30, None, 1.0, PLACE, _conditions().found) is None


def test_a_machine_that_was_slow_is_looked_at_again() -> None:
    faster = Roofline(2e11, 1e10)
    conditions = _conditions(BEST, faster)
    assert explain_implausible(2e11, 0, 1.0, PLACE, conditions.found) is None
    assert [when for when, _ in conditions.found.inspections[SETTING]] == ["before", "again", "again"]
    assert conditions.found.rooflines[SETTING].gemm_flops_per_s == 2e11
    assert conditions.found.rooflines[SETTING].caches == CACHES


def test_it_is_not_looked_at_for_ever() -> None:
    conditions = _conditions()
    assert all(explain_implausible(9e11, 0, 1.0, PLACE, conditions.found) for _ in range(5))
    assert len(conditions.engine.jobs) == plausibility.MAX_RECHECKS
    assert not any(job.canary for job in conditions.engine.jobs)


def test_a_look_that_fails_explains_nothing() -> None:
    assert _explain(9e11, 0, 1.0, PLACE, WorkerDied(0, 0, "crashed", "it fell over"))


def test_the_looks_are_kept_with_their_spread() -> None:
    conditions = _conditions(Roofline(8e10, 1.25e10, "oneDNN 1x1x1 float32", "max of 1 MiB"))
    assert measure_roofline("cpu", [("float32", 1)], conditions.found, "before") == {"canary": {"ok": True}}
    assert measure_roofline("cpu", [("float32", 1)], conditions.found, "after") == {}
    (entry,) = json.loads(json.dumps(list_rooflines("cpu", conditions.found)))
    assert (entry["dtype"], entry["threads"]) == ("float32", 1)
    assert (entry["gemm_flops_per_s"], entry["gemm_by"]) == (1e11, "torch.mm 512x512x512 float32")
    assert (entry["bytes_per_s"], entry["read_by"]) == (1.25e10, "max of 1 MiB")
    assert entry["spread"] == pytest.approx({"gemm": 0.2, "memory": 0.2, "L2": 0, "L3": 0})
    assert [one["when"] for one in entry["looks"]] == ["before", "before", "after"]
    assert entry["looks"][-1]["gemm_by"] == "oneDNN 1x1x1 float32"
    assert list_rooflines("cuda", conditions.found) == []
