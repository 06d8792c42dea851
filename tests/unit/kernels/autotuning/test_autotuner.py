"""The autotuner chooses by the nearest timing, or by the rule if there is none or implementations are equally fast."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.autotuning.candidates import TimingTable, Tunable, TuningPoint

TABLE = TimingTable(
    (
        (TuningPoint("a", (4, 64)), {"slow": 2.0, "fast": 1.0}),
        (TuningPoint("a", (4, 4096)), {"slow": 1.0, "fast": 2.0}),
        (TuningPoint("close", (4, 64)), {"slow": 1.05, "fast": 1.0}),
    )
)


@pytest.fixture
def tunable() -> Tunable:
    toy = Tunable(
        name="toy",
        implementations=("slow", "fast"),
        points=(),
        make_candidates=lambda point: {},
        rule=lambda point: "slow",
    )
    autotuner.use_tables({"toy": TABLE}, torch.get_num_threads())
    yield toy
    autotuner._TABLES.pop(("toy", torch.get_num_threads()))
    autotuner.clear_choices()


def test_nearest_timing_decides(tunable: Tunable) -> None:
    assert autotuner.choose(tunable, "a", 4, 64) == "fast"
    assert autotuner.choose(tunable, "a", 8, 100) == "fast"
    assert autotuner.choose(tunable, "a", 4, 3000) == "slow"


def test_rule_decides_without_timings_of_the_kind(tunable: Tunable) -> None:
    assert autotuner.choose(tunable, "b", 4, 64) == "slow"


def test_rule_decides_between_equally_fast_implementations(tunable: Tunable) -> None:
    assert autotuner.choose(tunable, "close", 4, 64) == "slow"


def test_tables_are_separate_for_each_number_of_threads(tunable: Tunable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    monkeypatch.setenv(autotuner.VARIABLE, "off")
    assert autotuner.choose(tunable, "a", 4, 64) == "slow"
    assert "off" in autotuner.find_table(tunable, 17).source


def test_calls_never_time_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call does not wait: rules decide until a run or `efficient-attn doctor` has timed the candidates."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(autotuner.VARIABLE, raising=False)
    monkeypatch.setattr(autotuner, "_TABLES", {})
    monkeypatch.setattr(autotuner, "CHOICES", {})
    calls = {"slow": lambda: time.sleep(1e-3), "fast": lambda: None}
    toy = Tunable(
        name="untimed",
        implementations=("slow", "fast"),
        points=(TuningPoint("a", (4, 64)),),
        make_candidates=lambda point: calls,
        rule=lambda point: "slow",
    )
    assert autotuner.choose(toy, "a", 4, 64) == "slow"
    assert not list(tmp_path.iterdir())
    assert autotuner.find_table(toy, torch.get_num_threads()).timings
    assert autotuner.choose(toy, "a", 4, 64) == "fast"
    monkeypatch.setattr(autotuner, "_TABLES", {})  # as in another process
    autotuner.clear_choices()
    assert autotuner.choose(toy, "a", 4, 64) == "fast"


def test_listed_choices_are_those_since_the_last_clear(tunable: Tunable) -> None:
    autotuner.choose(tunable, "a", 4, 64)
    autotuner.clear_choices()
    assert autotuner.list_choices() == ""
    autotuner.choose(tunable, "a", 4, 3000)
    autotuner.choose(tunable, "a", 4, 64)
    assert autotuner.list_choices() == "toy=fast,slow"


def test_number_of_remembered_choices_is_bounded(tunable: Tunable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotuner, "MAX_CHOICES", 3)
    for size in range(1, 20):
        autotuner.choose(tunable, "a", 4, size)
    assert len(autotuner.CHOICES) <= 3


@given(st.tuples(*[st.integers(0, 10**7)] * 2))
def test_any_size_gets_an_implementation(sizes: tuple[int, int]) -> None:
    toy = Tunable(
        name="toy", implementations=("slow", "fast"), points=(), make_candidates=lambda p: {}, rule=lambda p: "slow"
    )
    autotuner.use_tables({"toy": TABLE}, torch.get_num_threads())
    assert autotuner.choose(toy, "a", *sizes) in toy.implementations


def test_timed_calls_may_select_kernels_themselves(
    tunable: Tunable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They run in another thread, which would wait forever if the one that waits for them held the lock."""
    monkeypatch.delenv(autotuner.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(autotuner, "_TABLES", {})
    acquired: list[bool] = []

    def select_another() -> None:
        acquired.append(autotuner._LOCK.acquire(timeout=5))
        if acquired[-1]:
            autotuner._LOCK.release()
            autotuner.choose(tunable, "a", 4, 64)

    points = (TuningPoint("a", (1, 1)),)
    outer = replace(tunable, name="outer", points=points, make_candidates=lambda point: {"slow": select_another})
    assert autotuner.find_table(outer, torch.get_num_threads()).timings
    assert all(acquired)


def test_candidates_that_are_not_available_are_not_selected(tunable: Tunable) -> None:
    """As C++ in the table of an earlier session, on a machine that has none now."""
    without_fast = replace(tunable, is_available=lambda name: name != "fast")
    assert autotuner.choose(without_fast, "a", 4, 64) == "slow"
    without_any = replace(tunable, is_available=lambda name: False)
    autotuner.clear_choices()
    assert autotuner.choose(without_any, "a", 4, 64) == "slow"  # by rule
