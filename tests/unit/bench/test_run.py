"""Runs: every planned case has one row, also after interruptions and resumptions."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_suites
import torch
from command_server import SHORT_ROOFLINE
from torch import Tensor

from efficient_attn.bench import session as session_module
from efficient_attn.bench.measuring import parallel
from efficient_attn.bench.measuring.jobs import classify_error
from efficient_attn.bench.measuring.prepared_case import make_failure
from efficient_attn.bench.planning.plan import make_plan
from efficient_attn.bench.run import NoisyMachine, RunOutcome, StaleCases, default_folder, run
from efficient_attn.errors import Unchanged, UsageError
from efficient_attn.instruments import roofline
from efficient_attn.instruments.disturbance import Disturbance
from efficient_attn.results.rows import Record
from efficient_attn.results.store import RunWriter, read

pytestmark = pytest.mark.slow

TEXT = tiny_suites.TINY.replace("max_rounds=2\n", "").replace("[16]", "[8, 16, 24]") + '[[variant]]\nname = "linear"\n'


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    threads = torch.get_num_threads()
    with tiny_suites.isolated_registry():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def measured_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the measured groups, appended as they are measured."""
    lengths: list[int] = []
    original: Callable[..., list[Record]] = parallel.measure_group

    def measure(group: Any, cases: Any, conditions: Any) -> list[Record]:
        lengths.append(group.config.seq_len)
        return original(group, cases, conditions)

    monkeypatch.setattr(parallel, "measure_group", measure)
    return lengths


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Measure the machine only in tests that are marked `looks`, and briefly."""
    if "looks" not in request.keywords:
        monkeypatch.setattr(session_module, "_inspect", lambda device, planned, conditions: {"device": device})
    for name, value in SHORT_ROOFLINE.items():
        monkeypatch.setattr(roofline, name, value)


def _run(folder: Path, text: str = TEXT, **options: Any) -> RunOutcome:
    loaded = tiny_suites.parse(text)
    options = {"start_method": "inline"} | options
    return run(loaded, make_plan(loaded), folder, **options)


def _keys(folder: Path) -> list[str]:
    return [record.row.case_key for record in read(folder)]


def _planned(text: str = TEXT) -> list[str]:
    return [case.key for case in tiny_suites.plan(text)]


def test_every_planned_case_has_one_row_in_planned_order(tmp_path: Path) -> None:
    progress: list[tuple[str, int, int]] = []
    outcome = _run(tmp_path / "out", progress=lambda r, done, total: progress.append((r.row.case_key, done, total)))
    assert _keys(tmp_path / "out") == _planned()
    assert progress == [(key, i, 6) for i, key in enumerate(_planned(), 1)]
    assert (outcome.folder, outcome.statuses, outcome.failed) == (tmp_path / "out", Counter(ok=6), 0)


def test_rows_have_the_run_id_and_machine_of_their_session(tmp_path: Path) -> None:
    _run(tmp_path)
    (session,) = json.loads((tmp_path / "run.json").read_text())["sessions"]
    for record in read(tmp_path):
        assert record.row.run_id == session["run_id"]
        assert record.row.machine == session["environment"]["machine"]
        assert record.row.suite == "trial"
        assert record.samples["latency_ms"]
    assert session["suite"] == {"name": "trial", "title": "Tiny", "baseline": "full"}
    assert session["suite_text"] == TEXT
    assert session["started"] <= session["finished"]


def test_unsupported_cases_do_not_count_as_failed(tmp_path: Path) -> None:
    name = tiny_suites.register_modified("zz_wrong", lambda out: out * 2)
    text = tiny_suites.TINY + f'[[variant]]\nname = "{name}"\n[[variant]]\nname = "full:backend=magic"\n'
    outcome = _run(tmp_path, text)
    assert outcome.statuses == Counter(ok=1, invalid=1, unsupported=1)
    assert outcome.failed == 1


def test_resuming_a_finished_run_measures_nothing(tmp_path: Path, measured_lengths: list[int]) -> None:
    _run(tmp_path)
    before = (tmp_path / "rows.jsonl").read_bytes()
    measured_lengths.clear()
    _run(tmp_path, resume=True)
    assert measured_lengths == []
    assert (tmp_path / "rows.jsonl").read_bytes() == before


def test_resuming_an_absent_folder_starts_a_run(tmp_path: Path) -> None:
    _run(tmp_path / "new" / "one", resume=True)
    assert _keys(tmp_path / "new" / "one") == _planned()


@pytest.mark.sampled(4)
def test_resuming_measures_only_missing_cases(tmp_path: Path, measured_lengths: list[int]) -> None:
    _run(tmp_path)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    kept = [lines[i] for i in (0, 1, 3)]  # the second group has no baseline, the third no row
    (tmp_path / "rows.jsonl").write_text("".join(kept))
    measured_lengths.clear()
    progress: list[tuple[int, int]] = []
    _run(tmp_path, resume=True, progress=lambda r, done, total: progress.append((done, total)))
    assert measured_lengths == [16, 24]
    assert progress == [(4, 6), (5, 6), (6, 6)]
    assert (tmp_path / "rows.jsonl").read_text().startswith("".join(kept))
    assert Counter(_keys(tmp_path)) == Counter(_planned())
    assert len(json.loads((tmp_path / "run.json").read_text())["sessions"]) == 2


def test_untimed_tasks_are_resumed_case_by_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT.replace('"forward"', '"fidelity"')
    _run(tmp_path, text)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(lines[:1] + lines[2:]))
    variants: list[list[str]] = []
    original = parallel.measure_group

    def measure(group: Any, cases: Any, conditions: Any) -> Any:
        variants.append([case.variant for case in cases])
        return original(group, cases, conditions)

    monkeypatch.setattr(parallel, "measure_group", measure)
    _run(tmp_path, text, resume=True)
    assert variants == [["linear"]]
    assert Counter(_keys(tmp_path)).total() == len(lines)


@pytest.mark.sampled(4)
def test_rows_of_a_changed_plan_supersede_earlier_ones(tmp_path: Path) -> None:
    _run(tmp_path)
    before = (tmp_path / "rows.jsonl").read_bytes()
    wider = TEXT.replace("rounds   = 2", "rounds   = 3")
    with pytest.warns(StaleCases, match="6 cases were measured from other sources or settings; measured again"):
        _run(tmp_path, wider, resume=True)
    assert _keys(tmp_path) == _planned(wider)
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(before)  # earlier rows are kept


def test_resuming_with_another_length_adds_rows(tmp_path: Path) -> None:
    _run(tmp_path)
    more = tiny_suites.TINY.replace("[16]", "[12]")
    _run(tmp_path, more, resume=True)
    assert _keys(tmp_path) == _planned() + _planned(more)


def test_failed_cases_are_measured_again_with_retry_failed(tmp_path: Path, measured_lengths: list[int]) -> None:
    broken = True

    def twist(out: Tensor) -> Tensor:
        if broken and out.shape[2] == 16:
            raise RuntimeError("not today")
        return out

    text = TEXT.replace('"linear"', f'"{tiny_suites.register_modified("zz_moody", twist)}"')
    assert _run(tmp_path, text).failed == 1
    broken = False
    measured_lengths.clear()
    assert _run(tmp_path, text, resume=True).failed == 1
    assert measured_lengths == []
    assert _run(tmp_path, text, resume=True, retry_failed=True).failed == 0
    assert measured_lengths == [16]
    assert _keys(tmp_path) == _planned(text)


def test_the_row_of_an_unchanged_case_stays(tmp_path: Path) -> None:
    """On nodes too, whose later cases read it."""
    (case,) = tiny_suites.plan(tiny_suites.TINY)
    with RunWriter(tmp_path) as writer:
        stored = session_module.store_record(writer, make_failure(case, "ok", ""))
        kept = session_module.store_record(writer, make_failure(case, *classify_error(Unchanged())))
        assert (stored.row.status, kept.row.status, writer.statuses) == ("ok", "skipped", {case.key: "ok"})


def test_resuming_on_another_machine_is_refused(tmp_path: Path) -> None:
    _run(tmp_path)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"machine": "', '"machine": "Abacus '))
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(UsageError, match="measured with machine Abacus"):
        _run(tmp_path, resume=True)
    about = json.loads(path.read_text().replace("Abacus ", ""))
    about["sessions"][0]["environment"]["gpu_libraries"] = "triton 3.7.1, fla-core 0.6.0"
    path.write_text(json.dumps(about))
    with pytest.raises(UsageError, match=r"gpu libraries triton 3.7.1, fla-core 0.6.0; here it is none"):
        _run(tmp_path, resume=True)


def test_resuming_on_a_machine_of_the_same_name_is_refused(tmp_path: Path) -> None:
    _run(tmp_path)
    path = tmp_path / "run.json"
    about = json.loads(path.read_text())
    machine = about["sessions"][0]["environment"]["machine"]
    name, _, digest = machine.partition("#")
    about["sessions"][0]["environment"]["machine"] = f"{name}#{digest[::-1]}x"
    path.write_text(json.dumps(about))
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(UsageError, match=rf"machine {name}#{digest[::-1]}x; here it is {machine}; choose another"):
        _run(tmp_path, resume=True)
    del about["sessions"][0]["environment"]["identity"]
    path.write_text(json.dumps(about))
    with pytest.raises(UsageError, match="by a version that did not record which machine it was; here it is"):
        _run(tmp_path, resume=True)


@pytest.mark.looks
def test_sessions_record_roofline_time_and_limits(tmp_path: Path) -> None:
    _run(tmp_path)
    (session,) = json.loads((tmp_path / "run.json").read_text())["sessions"]
    (check,) = session["checks"]
    assert check["canary"]["ok"]
    (best,) = check["ceilings"]
    assert best["gemm_flops_per_s"] == max(look["gemm_flops_per_s"] for look in best["looks"]) > 1e8
    assert [look["when"] for look in best["looks"]] == ["before", "after"]
    assert all(look["gemm_by"] and look["read_by"] for look in best["looks"])
    assert 0 <= best["spread"]["gemm"] < 1
    assert session["account"]["working_s"] <= session["account"]["wall_s"]
    assert session["limits"]["timeout_s"] == 600
    assert (session["seed"], session["start_method"]) == (0, "inline")


NO_FREQUENCY = {"governor": None, "turbo": None, "mhz": None}


@pytest.mark.looks
@pytest.mark.parametrize("others_cores", [0.0, 1.5])
def test_a_noisy_machine_gives_a_warning_at_the_start(
    others_cores: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Disturbance(wall_s=1.0, own_cpu_s=1.0, others_cores=others_cores)
    monkeypatch.setattr("efficient_attn.instruments.disturbance.DisturbanceWatch.read_interval", lambda self: seen)
    monkeypatch.setattr("efficient_attn.bench.readiness.find_available_memory", lambda: 2**33)
    monkeypatch.setattr("efficient_attn.bench.readiness.machine.read_frequency", lambda: NO_FREQUENCY)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _run(tmp_path)
    noisy = [str(w.message) for w in caught if issubclass(w.category, NoisyMachine)]
    message = f"other programs used {others_cores} cores"
    assert noisy == ([f"not ready to measure: {message}"] if others_cores else [])
    (session,) = json.loads((tmp_path / "run.json").read_text())["sessions"]
    assert session["readiness"]["warning"] == (message if others_cores else None)
    assert [f["topic"] for f in session["readiness"]["findings"]] == ["frequency", "memory", "threads", "quiet"]


def test_an_interrupt_keeps_the_rows_so_far_and_resuming_completes(tmp_path: Path) -> None:
    stop = True

    def twist(out: Tensor) -> Tensor:
        if stop and out.shape[2] == 16:
            raise KeyboardInterrupt
        return out

    text = TEXT.replace('"linear"', f'"{tiny_suites.register_modified("zz_stop", twist)}"')
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, text)
    assert _keys(tmp_path) == _planned(text)[:2]  # the interrupted group has no rows
    (session,) = json.loads((tmp_path / "run.json").read_text())["sessions"]
    assert session["finished"] is None
    loaded = tiny_suites.parse(text)
    measured = make_plan(loaded)[:2]  # with no more than these the run is complete
    run(loaded, measured, tmp_path, start_method="inline", resume=True)
    (session,) = json.loads((tmp_path / "run.json").read_text())["sessions"]
    assert session["finished"]
    assert session["finished_by"][0] == "efficient-attn"
    stop = False
    _run(tmp_path, text, resume=True)
    assert _keys(tmp_path) == _planned(text)


def test_folders_with_other_files_or_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(UsageError, match="choose another --out"):
            _run(tmp_path, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    _run(tmp_path / "out")
    before = (tmp_path / "out" / "rows.jsonl").read_bytes()
    with pytest.raises(UsageError, match="not empty"):
        _run(tmp_path / "out")
    assert (tmp_path / "out" / "rows.jsonl").read_bytes() == before


def test_the_folder_is_named_after_the_suite_and_the_time() -> None:
    assert default_folder("quick", now=dt.datetime(2025, 3, 4, 5, 6, 7)) == Path("results/local/quick-20250304-050607")
