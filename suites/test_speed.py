"""The quickstart suite's speed cases under pytest-benchmark: ``tox -e bench``.

Every case is verified against its reference implementation first; a wrong result fails instead of being timed. The
mechanisms of one configuration form one pytest-benchmark group. For paired ratios with intervals, and for reports, use
``efficient-attn run``.
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
from efficient_attn.instruments.environment import describe_absence
from efficient_attn.tasks import TABLE

SUITE = os.environ.get("EFFICIENT_ATTN_SUITE", "quickstart")
CASES = [case for case in make_plan(load_suite(SUITE, TABLE)) if case.group.task == "speed"]


def _group(case: Case) -> str:
    config = case.group.config
    return f"{config.mode}-n{config.seq_len}-{'causal' if config.causal else 'all'}-{config.dtype}-{config.device}"


@pytest.mark.parametrize("case", CASES, ids=[f"{_group(c)}-{c.variant}" for c in CASES])
def test_speed(benchmark, case: Case) -> None:
    config = case.group.config
    if reason := describe_absence(config.device):
        pytest.skip(reason)
    if config.threads:
        torch.set_num_threads(config.threads)
    workload = Workload(case)
    verify_case(workload)
    subject = workload.subject()
    benchmark.group = _group(case)
    benchmark.extra_info.update(variant=case.variant, seq_len=config.seq_len, case_key=case.key)

    def prepare() -> tuple[tuple[int], dict[str, object]]:
        subject.reset()
        return (1,), {}

    benchmark.pedantic(subject.run, setup=prepare, rounds=5, warmup_rounds=1)
