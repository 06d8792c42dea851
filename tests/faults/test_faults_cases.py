"""Failing mechanisms in a real run: each failure becomes a row with its status and reason, and the run continues."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest
from made_once import make_once
from shell import Done, run
from tiny_suites import write_faulty_suite

import efficient_attn as ea

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs signals and memory limits of Linux")

HERE = Path(__file__).parent
EXPECTED = {  # status, and part of the reason
    "zz_sets_threads": ("invalid", "changed the number of threads from 1 to 2"),
    "zz_sets_default_dtype": ("invalid", "changed the default dtype from torch.float32 to torch.float64"),
    "zz_enables_gradients": ("invalid", "turned gradients on"),
    "zz_draws_random_numbers": ("invalid", "used torch's global random number generator"),
    "zz_returns_nan": ("invalid", "not finite"),
    "zz_returns_wrong_shape": ("invalid", "the output is"),
    "zz_returns_wrong_dtype": ("invalid", "the output is"),
    "zz_is_one_percent_off": ("invalid", "relative error 1.00e-02, allowed 1e-04"),
    "zz_raises": ("error", "ValueError: no sense"),
    "zz_exceeds_memory": ("oom", "can't allocate memory"),
    "zz_segfaults": ("crashed", "killed by SIGSEGV, in _segfaults (failing_mechanisms.py:"),
    "zz_kills_itself": ("crashed", "killed by SIGKILL, while its first call ran"),
    "zz_hangs_in_c": ("timeout", "_hangs_in_c (failing_mechanisms.py:"),
    "zz_sleeps": ("timeout", "_sleeps (failing_mechanisms.py:"),
    "zz_works_once": ("error", "RuntimeError: only once"),
    "zz_frees_inputs": ("error", "out of bounds for storage of size 0"),
    "zz_shares_buffer": ("invalid", "shares its memory with that of an earlier call"),
    "zz_segfaults_when_timed": ("crashed", "killed by SIGSEGV, in compute (failing_mechanisms.py:"),
}
LENGTHS = [16, 32]


def _folder(path: Path, *names: str, processes: int = 2) -> Path:
    plugin = HERE / "failing_mechanisms.py"
    write_faulty_suite(path / "failing.toml", names, plugins=[plugin], lengths=LENGTHS, processes=processes, budget_s=3)
    return path


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, pd.DataFrame]:
    done, out = make_once(tmp_path_factory, "failing", _run_all)
    return done, ea.load(out)


def _run_all(empty: Path) -> tuple[Done, Path]:
    names = list(EXPECTED)
    folder = _folder(empty, "full", *names[:8], "linear", *names[8:], "mqa")
    done = run("run", "failing.toml", "--out", "out", "--timeout", "20", "--memory-limit", "4GiB", cwd=folder)
    return done, folder / "out"


@pytest.mark.sampled(3, together="faults_cases.outcome")
def test_every_planned_case_has_exactly_one_row(outcome: tuple[Done, pd.DataFrame]) -> None:
    done, rows = outcome
    assert done.code == 1  # done, but cases failed
    assert "Traceback" not in done.err
    assert sorted(zip(rows.variant, rows.seq_len, strict=True)) == sorted(
        (name, n) for name in ("full", "linear", "mqa", *EXPECTED) for n in LENGTHS
    )


@pytest.mark.sampled(3, together="faults_cases.outcome")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_failure_has_its_status_and_reason(name: str, outcome: tuple[Done, pd.DataFrame]) -> None:
    status, reason = EXPECTED[name]
    for row in outcome[1][outcome[1].variant == name].itertuples():
        assert (row.status, pd.isna(row.latency_ms)) == (status, True)
        assert reason in row.reason
        assert "\n" not in row.reason


@pytest.mark.sampled(3, together="faults_cases.outcome")
@pytest.mark.parametrize("name", ["full", "linear", "mqa"])
def test_other_mechanisms_of_the_suite_are_measured(name: str, outcome: tuple[Done, pd.DataFrame]) -> None:
    rows = outcome[1][outcome[1].variant == name]
    assert list(rows.status) == ["ok", "ok"]
    assert (rows.latency_ms > 0).all()
    assert (rows.rounds == 2).all()
    assert (rows.processes == 2).all()
    assert rows.speedup.notna().all()
    assert (rows.threads == 1).all()


@pytest.mark.sampled(12)
def test_spawned_workers_report_crashes_and_have_a_memory_limit(tmp_path: Path) -> None:
    spawned = ("zz_segfaults", "zz_exceeds_memory")
    folder = _folder(tmp_path, "full", *spawned, processes=1)
    arguments = ("run", "failing.toml", "--out", "out", "--seq-len", "16", "--start-method", "spawn")
    done = run(*arguments, "--memory-limit", "4GiB", cwd=folder)
    assert done.code == 1
    rows = ea.load(folder / "out").set_index("variant")
    assert dict(rows.status) == {name: EXPECTED[name][0] for name in spawned} | {"full": "ok"}
    assert "killed by SIGSEGV" in rows.reason["zz_segfaults"]


@pytest.mark.sampled(4)
def test_failures_are_repeated_only_with_retry_failed(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "full", "zz_raises")
    arguments = ("run", "failing.toml", "--out", "out", "--seq-len", "16", "--resume")
    assert run(*arguments, cwd=folder).code == 1
    before = (folder / "out" / "rows.jsonl").read_bytes()
    assert run(*arguments, cwd=folder).code == 1
    assert (folder / "out" / "rows.jsonl").read_bytes() == before
    assert run(*arguments, "--retry-failed", cwd=folder).code == 1
    after = (folder / "out" / "rows.jsonl").read_bytes()
    assert after.startswith(before)
    assert after[len(before) :].count(b"\n") == 1
    assert sorted(ea.load(folder / "out").variant) == ["full", "zz_raises"]
