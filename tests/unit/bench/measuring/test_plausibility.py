"""Plausibility: times above the roofline are refused, after the roofline was measured again."""

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
    explain_implausible,
    list_rooflines,
    measure_roofline,
)
from efficient_attn.engines.job import WorkerDied
from efficient_attn.instruments.roofline import CacheLevel, Roofline

SETTING = ("cpu", "float32", 1)
CACHES = (CacheLevel("L2", 2**20, 4e10), CacheLevel("L3", 2**25, 2e10))
BEST = Roofline(1e11, 1e10, "torch.mm 512x512x512 float32", "sum of 256 MiB", CACHES)
CONFIG = CaseConfig(seq_len=16, max_len=16, threads=1)
COLD = CaseConfig(seq_len=16, max_len=16, threads=1, cache="cold")


class _Engine:
    """Returns the given rooflines one after the other, and repeats the last one."""

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


def _make_conditions(*answers: Roofline | WorkerDied, best: Roofline = BEST) -> Any:
    engine: Any = _Engine(*(answers or (best,)))
    return SimpleNamespace(
        engine=engine, conditions=Conditions(engine=engine, inspections={SETTING: [("before", best)]})
    )


def _explain(
    flops: float, size: int, seconds: float, config: CaseConfig = CONFIG, *answers: Roofline | WorkerDied
) -> str | None:
    return explain_implausible(flops, size, seconds, config, _make_conditions(*answers).conditions)


def test_at_most_125_percent_of_the_roofline_are_plausible() -> None:
    assert _explain(1e11, 0, 1 / 1.24) is None
    assert _explain(1e11, 0, 1 / 1.26) == (
        "faster than this machine computes: at least 126 GFLOP/s, the roofline is 100 "
        "(torch.mm 512x512x512 float32), and 1.25 times that is allowed"
    )


@pytest.mark.parametrize(
    ("size", "config", "seconds", "holder"),
    [
        (2**20, CONFIG, 2**20 / 4e10, "L2"),
        (2**24, CONFIG, 2**20 / 4e10 + (2**24 - 2**20) / 2e10, "L3"),
        (2**27, CONFIG, 2**20 / 4e10 + 2**25 / 2e10 + (2**27 - 2**25 - 2**20) / 1e10, "memory"),
        (2**20, COLD, 2**20 / 1e10, "memory"),
    ],
)
def test_reads_are_compared_with_the_cache_or_memory_that_fits(
    size: int, config: CaseConfig, seconds: float, holder: str
) -> None:
    assert _explain(1.0, size, seconds / 1.24, config) is None
    reason = _explain(1.0, size, seconds / 1.26, config) or ""
    assert "faster than this machine reads: at least " in reason
    assert f"({holder})" in reason
    assert f"the roofline is {size / seconds / 1e9:.4g}" in reason


def test_everything_is_plausible_without_a_roofline() -> None:
    assert explain_implausible(1e30, 1, 1.0, CONFIG, Conditions()) is None
    assert explain_implausible(1e30, None, 1.0, CONFIG, _make_conditions().conditions) is None


def test_the_roofline_is_measured_again_before_a_refusal() -> None:
    faster = Roofline(2e11, 1e10)
    setup = _make_conditions(BEST, faster)
    assert explain_implausible(2e11, 0, 1.0, CONFIG, setup.conditions) is None
    assert [when for when, _ in setup.conditions.inspections[SETTING]] == ["before", "again", "again"]
    assert setup.conditions.rooflines[SETTING].gemm_flops_per_s == 2e11
    assert setup.conditions.rooflines[SETTING].caches == CACHES


def test_the_roofline_is_rechecked_a_limited_number_of_times() -> None:
    setup = _make_conditions()
    assert all(explain_implausible(9e11, 0, 1.0, CONFIG, setup.conditions) for _ in range(5))
    assert len(setup.engine.jobs) == plausibility.MAX_RECHECKS
    assert not any(job.canary for job in setup.engine.jobs)


def test_times_stay_implausible_if_the_recheck_fails() -> None:
    assert _explain(9e11, 0, 1.0, CONFIG, WorkerDied(0, 0, "crashed", "it fell over"))


def test_roofline_measurements_are_listed_with_their_spread() -> None:
    setup = _make_conditions(Roofline(8e10, 1.25e10, "oneDNN 1x1x1 float32", "max of 1 MiB"))
    assert measure_roofline("cpu", [("float32", 1)], setup.conditions, "before") == {"canary": {"ok": True}}
    assert measure_roofline("cpu", [("float32", 1)], setup.conditions, "after") == {}
    (entry,) = json.loads(json.dumps(list_rooflines("cpu", setup.conditions)))
    assert (entry["dtype"], entry["threads"]) == ("float32", 1)
    assert (entry["gemm_flops_per_s"], entry["gemm_by"]) == (1e11, "torch.mm 512x512x512 float32")
    assert (entry["bytes_per_s"], entry["read_by"]) == (1.25e10, "max of 1 MiB")
    assert entry["spread"] == pytest.approx({"gemm": 0.2, "memory": 0.2, "L2": 0, "L3": 0})
    assert [look["when"] for look in entry["looks"]] == ["before", "before", "after"]
    assert entry["looks"][-1]["gemm_by"] == "oneDNN 1x1x1 float32"
    assert list_rooflines("cuda", setup.conditions) == []
