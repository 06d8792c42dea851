"""The quickstart suite's speed cases under pytest-benchmark: ``tox -e bench``.

Every case is gated against its oracle first; a wrong result fails instead of getting a time. Mechanisms of one cell
form one group. For paired ratios with intervals, and for reports, use ``efficient-attn run``.
"""

from __future__ import annotations

import os

import pytest
import torch

from efficient_attn.bench.case import Case
from efficient_attn.bench.measuring.verification import verify_case
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.bench.planning.plan import make_plan
from efficient_attn.bench.planning.suite import load_suite
from efficient_attn.instruments.environment.devices import describe_absence
from efficient_attn.tasks import TABLE

SUITE = os.environ.get("EFFICIENT_ATTN_SUITE", "quickstart")
CASES = [case for case in make_plan(load_suite(SUITE, TABLE)) if case.group.task == "speed"]


def _group(case: Case) -> str:
    at = case.group.config
    return f"{at.mode}-n{at.seq_len}-{'causal' if at.causal else 'all'}-{at.dtype}-{at.device}"


@pytest.mark.parametrize("case", CASES, ids=[f"{_group(c)}-{c.variant}" for c in CASES])
def test_speed(benchmark, case: Case) -> None:
    place = case.group.config
    if reason := describe_absence(place.device):
        pytest.skip(reason)
    if place.threads:
        torch.set_num_threads(place.threads)
    workload = Workload(case)
    verify_case(workload)
    subject = workload.subject()
    benchmark.group = _group(case)
    benchmark.extra_info.update(variant=case.variant, seq_len=place.seq_len, case_key=case.key)

    def prepare() -> tuple[tuple[int], dict[str, object]]:
        subject.reset()
        return (1,), {}

    benchmark.pedantic(subject.run, setup=prepare, rounds=5, warmup_rounds=1)
