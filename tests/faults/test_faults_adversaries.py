"""Adversarial mechanisms are detected, and their honest counterparts are measured."""

from __future__ import annotations

import hashlib
import importlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import tiny_suites
import torch
from adversary_detection import (
    DECODED,
    LONG,
    PLUGINS,
    SHORT,
    SHOWN,
    gains_nothing,
    is_found,
    list_names,
    make_suite,
    run_suite,
)
from made_once import make_once
from shell import run

import efficient_attn as ea
from efficient_attn.bench.measuring import inputs, output_comparison, samples, verification
from efficient_attn.bench.measuring.conditions import PRELOAD, Conditions
from efficient_attn.bench.measuring.inputs import list_tensors, make_inputs
from efficient_attn.bench.measuring.process_runs import ProcessRuns
from efficient_attn.bench.measuring.row_errors import InvalidResult
from efficient_attn.bench.measuring.samples import make_timed, verify_workload
from efficient_attn.bench.measuring.turn_guard import guard_creation
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.instruments import global_state, integrity
from efficient_attn.instruments.global_state import GlobalStateChanged, watch_global_state

DIFFERS = "differs from the reference"
GROWS = "its memory grows"  # of caches whose keys change with the inputs
PATCHED = r"it replaced {} by its own \({}.py:"
REASONS = {  # a pattern in the reason of its rows
    "pointer": f"{DIFFERS}|{GROWS}",
    "version": f"{DIFFERS}|{GROWS}",
    "corner": f"{DIFFERS}|{GROWS}|its kernels changed",  # it may reuse few results
    "constant": DIFFERS,
    "second": f"{DIFFERS}|its kernels changed",  # it runs none in every second call
    "not_a_number": "the output of the reference implementation has values that are not finite",
    "lazy": "the output is a LateTensor, not a plain tensor",
    "clock": PATCHED.format("efficient_attn.instruments.timing.perf_counter", "adversaries"),
    "thread": "",  # depends on how far the thread has come
    "short": DIFFERS,
    "half": DIFFERS,
    "numpy": "",  # either the output or the inputs differ
    "sixty": "it wrote into its input v",
    "partial_rows": "differs",
    "wrong_tile": "differs",
    "unseen_precision": "differs",
    "disk": f"{DIFFERS}|its kernels changed",
    "flash_switch": "it turned the flash kernel of scaled_dot_product_attention off",
    "patched_function": PATCHED.format("torch.nn.functional.scaled_dot_product_attention", "adversaries_of_timing"),
    "patched_baseline": PATCHED.format("efficient_attn.variants.full.full.Full.compute", "adversaries_of_timing"),
    "busy_thread": "a thread that it started worked for",
}
AT_LONG_LENGTH = ("short", "partial_rows", "wrong_tile", "unseen_precision")
NAMES = sorted({*REASONS, *SHOWN})
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu aten::scaled_dot_product_attention"


@pytest.fixture(scope="module")
def run_rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return ea.load(make_once(tmp_path_factory, "adversaries", _run_all))


def _run_all(folder: Path) -> Path:
    (folder / "adversaries.toml").write_text(make_suite(NAMES, rounds=4))
    run("run", "adversaries.toml", "--out", "out", cwd=folder, TMPDIR=str(folder))
    return folder / "out"


@pytest.fixture(scope="module")
def rows(run_rows: pd.DataFrame) -> pd.DataFrame:
    return run_rows[run_rows["mode"] == "forward"].set_index(["variant", "seq_len"])


@pytest.mark.sampled(6, together="faults_adversaries.rows")
@pytest.mark.parametrize("name", REASONS)
def test_an_adversary_is_invalid_and_has_no_time(name: str, rows: pd.DataFrame) -> None:
    # the drawn call of each of four rounds may be one that it computes, once in 16 times
    lengths = (SHORT, LONG) if name == "second" else (LONG,) if name in AT_LONG_LENGTH else (SHORT,)
    invalid = [row for row in (rows.loc[(f"zz_{name}", n)] for n in lengths) if row.status == "invalid"]
    assert invalid
    for row in invalid:
        assert pd.isna(row.latency_ms)
        assert re.search(REASONS[name], row.reason)


@pytest.mark.sampled(6, together="faults_adversaries.rows")
@pytest.mark.parametrize("name", SHOWN)
def test_a_correct_adversary_gains_and_hides_nothing(name: str, run_rows: pd.DataFrame, tmp_path: Path) -> None:
    """On a busy machine two medians of four rounds may differ by chance: one that gains is measured again, alone."""
    if not is_found(name, run_rows) and SHOWN[name] is gains_nothing:
        (tmp_path / "adversaries.toml").write_text(make_suite([name]))
        run_rows = run_suite(tmp_path, tmp_path / "out", seed=1)
    assert is_found(name, run_rows)


@pytest.mark.sampled(6, together="faults_adversaries.rows")
@pytest.mark.parametrize("name", NAMES)
def test_the_honest_counterpart_is_measured(name: str, run_rows: pd.DataFrame) -> None:
    rows = run_rows[run_rows.variant == f"zz_honest_{name}"]
    assert sorted(rows.seq_len) == [LONG] if name == DECODED else [SHORT, LONG]
    for _, row in rows.iterrows():
        assert (row.status, str(row.reason)) == ("ok", "<NA>")
        assert row.latency_ms > 0
        assert row.gate_len == row.seq_len


@pytest.mark.sampled(6, together="faults_adversaries.rows")
@pytest.mark.parametrize("length", [SHORT, LONG])
def test_the_baseline_is_measured_with_its_kernels(length: int, rows: pd.DataFrame) -> None:
    baseline = rows.loc[("full", length)]
    assert (baseline.status, baseline.speedup, baseline.kernels) == ("ok", 1, FLASH)


# -- each safeguard is needed ----------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[None]:
    for module in PRELOAD:
        importlib.import_module(module)
    integrity.record_integrity()
    with tiny_suites.isolated_registry():
        for plugin in PLUGINS:
            ea.load_plugin(str(plugin))
        yield
    integrity.restore()


def _repeat_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one set of inputs for all calls."""
    real = inputs.RowPool.write
    monkeypatch.setattr(inputs.RowPool, "write", lambda self, *_: real(self, 0, 0, 0))
    monkeypatch.setattr(inputs, "MIN_INPUT_SETS", 1)
    monkeypatch.setattr(samples, "MAX_INPUT_SETS", 1)


def _disable_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (output_comparison, verification):
        monkeypatch.setattr(module, "check_same", lambda *_, **__: 0.0)


DISABLE: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "new_inputs": _repeat_inputs,
    "comparison": _disable_comparison,
    "input_contents": lambda monkeypatch: monkeypatch.setattr(samples, "check_inputs", lambda feed: None),
    "plain_output": lambda monkeypatch: [
        monkeypatch.setattr(m, "check_plain", lambda *_: None) for m in (verification, samples)
    ],
    "integrity": lambda monkeypatch: monkeypatch.setattr(integrity, "_recorded", {}),
    "finished": lambda monkeypatch: monkeypatch.setattr(samples, "check_finished", lambda *_: None),
    "switches": lambda monkeypatch: monkeypatch.setattr(global_state, "SETTINGS", ()),
}
SAFEGUARDS = {
    "pointer": ["new_inputs"],
    "version": ["new_inputs"],
    "corner": ["new_inputs"],
    "constant": ["comparison"],
    "second": ["comparison"],
    "not_a_number": ["comparison"],
    "lazy": ["plain_output"],
    "clock": ["integrity"],
    "thread": ["comparison", "finished"],
    "short": ["comparison"],
    "half": ["comparison"],
    "numpy": ["comparison", "input_contents"],
    "sixty": ["comparison", "input_contents"],
    "partial_rows": ["comparison"],
    "wrong_tile": ["comparison"],
    "unseen_precision": ["comparison"],
    "flash_switch": ["switches"],
    "patched_function": ["integrity"],
    "patched_baseline": ["integrity"],
}


def _detect(name: str, seed: int = 0) -> str | None:
    """The reason for which a mechanism is rejected in a process run with this seed, or None."""
    length = LONG if name.removeprefix("zz_").removeprefix("honest_") in AT_LONG_LENGTH else SHORT
    case = tiny_suites.case(name, seq_len=length)
    torch.backends.cuda.enable_flash_sdp(True)  # planning, which happens in another process, has created an instance
    try:
        with guard_creation(case):
            workload = Workload(case)
        subject = make_timed(workload, seed=seed)
        with watch_global_state():
            verify_workload(workload)
            for _ in range(40):
                subject.reset(3)
                subject.run(3)
                subject.settle()
                subject.verify()
    except (InvalidResult, GlobalStateChanged) as error:
        return str(error)
    return None


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", SAFEGUARDS)
def test_an_adversary_passes_without_its_safeguard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(REASONS[name], _detect(f"zz_{name}") or "accepted")
    assert _detect(f"zz_honest_{name}") is None
    monkeypatch.setattr(integrity, "_recorded", {})  # it would detect the replacements below
    for safeguard in SAFEGUARDS[name]:
        DISABLE[safeguard](monkeypatch)
    assert _detect(f"zz_{name}") is None
    monkeypatch.undo()  # what it has replaced is undone by `registered`
    torch.backends.cuda.enable_flash_sdp(True)


@pytest.mark.usefixtures("registered")
def test_caching_by_contents_saves_no_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_computed() -> int:
        workload = Workload(tiny_suites.case("zz_contents", seq_len=SHORT))
        subject = make_timed(workload, seed=0)
        for _ in range(20):
            subject.reset(10)
            subject.run(10)
            subject.verify()
        return len(workload.attn.cache)  # pyright: ignore

    assert count_computed() >= 0.95 * 200
    _repeat_inputs(monkeypatch)
    assert count_computed() == 1


def _digest_inputs(seeds: Iterable[int]) -> Counter[str]:
    """How often the contents of a timed call occur, with these seeds."""
    workload = Workload(tiny_suites.case("full", seq_len=SHORT))
    digests: Counter[str] = Counter()
    for seed in seeds:
        timed = make_inputs(workload.case, workload.attn, workload.shape, workload.sample, seed=seed)
        for _ in range(20):
            digests.update(
                hashlib.sha256(b"".join(x.numpy().tobytes() for x in list_tensors(sample))).hexdigest()
                for sample in timed.change(10)
            )
    return digests


def test_a_store_of_results_by_contents_is_never_hit() -> None:
    seeds = [next(ProcessRuns(tiny_suites.case("full").group, {}, Conditions()).seeds) for _ in range(4)]
    assert max(_digest_inputs(seeds).values()) == 1
    assert min(_digest_inputs([seeds[0]] * 2).values()) == 2


@pytest.mark.usefixtures("registered")
def test_stored_results_of_another_process_are_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert [_detect("zz_honest_disk", seed) for seed in (0, 1)] == [None, None]
    assert _detect("zz_disk", 0) is None
    assert DIFFERS in (_detect("zz_disk", 1) or "")


def test_every_adversary_has_a_case() -> None:
    with tiny_suites.isolated_registry():
        assert sorted(list_names()) == NAMES
