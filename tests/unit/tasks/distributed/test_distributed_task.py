"""The task `distributed`: what it plans, measures and refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_suites
import torch
from inline_measurement import measure_cases

import efficient_attn as ea
from efficient_attn.bench.case import group_cases
from efficient_attn.bench.measuring.row_errors import InvalidResult
from efficient_attn.instruments.environment import machine
from efficient_attn.tasks.distributed.distributed_task import check_results, make_job
from efficient_attn.tasks.distributed.rank_job import RankResult
from efficient_attn.tasks.distributed.rank_processes import run_ranks

SUITE = """
title    = "trial"
measure  = ["distributed"]
scheme   = ["ring", "heads"]
ranks    = [1, 2]
rounds   = 3
axes     = { seq_len = [64], causal = [true], threads = [1] }
dims     = { heads = 4, head_dim = 16 }
variant  = [{ name = "full" }]
"""


def test_a_group_for_each_scheme_and_number_of_ranks() -> None:
    groups = [group for group, _ in group_cases(tiny_suites.plan(SUITE))]
    assert [group.config.inputs for group in groups] == [
        *("ring, 1 rank, training", "ring, 2 ranks, training", "heads, 1 rank, training", "heads, 2 ranks, training")
    ]


def test_lengths_that_ranks_do_not_divide() -> None:
    with pytest.raises(ea.UsageError, match="ring on 2 ranks needs multiples of 4, not 50"):
        tiny_suites.plan(SUITE, axes={"seq_len": [50]})


@pytest.mark.slow
@pytest.mark.sampled(3, together="distributed.processes")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_ranks_without_gpus() -> None:
    (case,) = tiny_suites.plan(
        SUITE, keys={"scheme": "ring", "ranks": 1}, axes={"device": ["cuda"], "dtype": ["float32"]}
    )
    job = make_job(case)
    with pytest.raises(ea.UnsupportedError, match="1 ranks need as many GPUs, there are 0"):
        run_ranks(job)


@pytest.mark.slow
@pytest.mark.sampled(3, together="distributed.processes")
def test_a_rank_that_ends_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with another copy of the package, which ranks do not import."""
    (tmp_path / "efficient_attn").mkdir()
    (tmp_path / "efficient_attn" / "__init__.py").write_text("raise RuntimeError('the other copy')")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaves.py").write_text("import os, sys\nif sys.argv[-1] == '1':\n    os._exit(7)\n")
    (case,) = tiny_suites.plan(SUITE, keys={"scheme": "ring", "ranks": 2})
    job = replace(make_job(case), plugins=(str(tmp_path / "leaves.py"),))
    with pytest.raises(RuntimeError, match="rank 1 ended with status 7: no output"):
        run_ranks(job)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("cores", [1, 2])
def test_two_ranks_are_verified_counted_and_timed(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed if each has a core of its own."""
    monkeypatch.setattr(machine, "count_usable_cores", lambda: cores)
    (case,) = tiny_suites.plan(SUITE, keys={"scheme": "ring", "ranks": 2})
    (record,) = measure_cases([case])
    row = record.row
    assert (row.status, row.mode, row.backend_used) == ("ok", "forward_backward", "sdpa")
    keys = 1 * 4 * 32 * (16 + 16) * 4  # of a rank, in float32
    assert row.extra["sent_bytes"] == row.extra["formula_bytes"] == 3 * keys + 88
    assert 0 < float(str(row.extra["difference"])) < 2e-6
    assert row.extra["cores"] == cores
    if cores == 1:
        assert (row.latency_ms, row.extra["note"]) == (None, "no time: 2 ranks of 1 threads, usable cores: 1")
        return
    assert row.latency_ms is not None
    assert [len(x) for x in record.samples["latency_ms"]] == [1, 1, 1]
    assert row.latency_ms_low is not None
    assert row.latency_ms_low <= row.latency_ms


@pytest.mark.slow
@pytest.mark.sampled(3, together="distributed.processes")
@pytest.mark.parametrize(
    ("keys", "variant", "status", "reason"),
    [
        ({"scheme": "heads", "ranks": 3}, "full", "error", "3 ranks do not divide 4 heads"),
        ({"scheme": "state", "ranks": 1}, "full", "unsupported", "does not support context_parallel='state'"),
    ],
)
def test_calls_that_do_not_fit(keys: dict[str, object], variant: str, status: str, reason: str) -> None:
    cases = tiny_suites.plan(SUITE, keys=keys, variants=[variant], axes={"seq_len": [48]})
    (record,) = measure_cases(cases)
    assert record.row.status == status
    assert reason in (record.row.reason or "")


RESULT = RankResult(times_s=[1.0], sent=1000, formula=1000, difference=1e-7)


def test_results_that_differ_are_invalid() -> None:
    check_results([RESULT, replace(RESULT, sent=1009, difference=None)], "float32")
    for wrong, message in (
        (replace(RESULT, difference=2e-5), "differ from one process by 2e-05, at most 1e-05 is allowed"),
        (replace(RESULT, difference=float("nan")), "by nan"),
        (replace(RESULT, sent=1011), r"rank 0 sent 1,011 bytes, by the formula 1,000"),
    ):
        with pytest.raises(InvalidResult, match=message):
            check_results([wrong], "float32")
