"""Adversarial mechanisms are detected, and their honest counterparts are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
import pytest
import tiny_suites
from adversary_detection import ADVERSARIES, LONG, SHORT, make_suite
from shell import run

import efficient_attn as ea
from efficient_attn.bench.measuring import inputs, output_comparison, round_job, samples, verification
from efficient_attn.bench.measuring.output_comparison import InvalidResult
from efficient_attn.bench.measuring.samples import make_timed, verify_workload
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.instruments import integrity
from efficient_attn.instruments.global_state import GlobalStateChanged, watch_global_state

REASONS = {  # part of the reason of its rows
    "pointer": "differs from the reference",
    "version": "differs from the reference",
    "corner": "differs from the reference",
    "contents": "",  # always correct, and not faster: see below
    "constant": "differs from the reference",
    "second": "differs from the reference",
    "not_a_number": "the output of the reference implementation has values that are not finite",
    "lazy": "the output is a LateTensor, not a plain tensor",
    "clock": "it replaced efficient_attn.instruments.timing.perf_counter by its own (adversaries.py:",
    "thread": "",  # depends on how far the thread has come
    "short": "differs from the reference",
    "half": "differs from the reference",
    "numpy": "",  # either the output or the inputs differ
    "sixty": "it wrote into its input v",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("adversaries")
    names = [f"zz_{kind}{name}" for kind in ("", "honest_") for name in REASONS]
    (folder / "adversaries.toml").write_text(make_suite(names))
    run("run", "adversaries.toml", "--out", "out", cwd=folder)
    return ea.load(folder / "out").set_index(["variant", "seq_len"])


@pytest.mark.parametrize("name", REASONS)
def test_an_adversary_is_invalid_and_has_no_time(name: str, rows: pd.DataFrame) -> None:
    if name == "contents":
        pytest.skip("always correct; that it gains nothing is tested below")
    length = LONG if name == "short" else SHORT
    row = rows.loc[(f"zz_{name}", length)]
    assert (row.status, pd.isna(row.latency_ms)) == ("invalid", True)
    assert REASONS[name] in row.reason


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("name", REASONS)
def test_the_honest_counterpart_is_measured(name: str, length: int, rows: pd.DataFrame) -> None:
    row = rows.loc[(f"zz_honest_{name}", length)]
    assert (row.status, str(row.reason)) == ("ok", "<NA>")
    assert row.latency_ms > 0
    assert row.gate_len == length


# -- each safeguard is needed ----------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[None]:
    assert round_job.MeasureRounds  # its import records the functions that must not be replaced
    with tiny_suites.isolated_registry():
        ea.load_plugin(str(ADVERSARIES))
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
        monkeypatch.setattr(module, "check_same", lambda *_: 0.0)


DISABLE: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "new_inputs": _repeat_inputs,
    "comparison": _disable_comparison,
    "input_contents": lambda monkeypatch: monkeypatch.setattr(samples, "check_inputs", lambda feed: None),
    "plain_output": lambda monkeypatch: [
        monkeypatch.setattr(m, "check_plain", lambda *_: None) for m in (verification, samples)
    ],
    "integrity": lambda monkeypatch: monkeypatch.setattr(integrity, "_recorded", {}),
    "finished": lambda monkeypatch: monkeypatch.setattr(samples, "check_finished", lambda last: None),
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
}


def _detect(name: str, samples_taken: int = 40) -> str | None:
    """The reason for which a mechanism is rejected, or None."""
    workload = Workload(tiny_suites.case(name, seq_len=LONG if "short" in name else SHORT))
    subject = make_timed(workload, seed=0)
    try:
        with watch_global_state():
            verify_workload(workload)
            for _ in range(samples_taken):
                subject.reset(3)
                subject.run(3)
                subject.verify()
    except (InvalidResult, GlobalStateChanged) as error:
        return str(error)
    return None


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", SAFEGUARDS)
def test_an_adversary_passes_without_its_safeguard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert REASONS[name] in (_detect(f"zz_{name}") or "")
    assert _detect(f"zz_honest_{name}") is None
    monkeypatch.setattr(integrity, "_recorded", {})  # it would detect the replacements below
    for safeguard in SAFEGUARDS[name]:
        DISABLE[safeguard](monkeypatch)
    assert _detect(f"zz_{name}") is None


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


def test_every_adversary_has_a_case() -> None:
    with tiny_suites.isolated_registry():
        names = set(ea.load_plugin(str(ADVERSARIES)))
    assert names == {f"zz_{kind}{name}" for name in REASONS for kind in ("", "honest_")}
