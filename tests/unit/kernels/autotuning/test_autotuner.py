"""The nearest timing decides; a rule where there is none, or where forms are as good as each other."""

from __future__ import annotations

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
def contest() -> Tunable:
    made = Tunable(
        name="toy",
        implementations=("slow", "fast"),
        points=(),
        make_candidates=lambda point: {},
        rule=lambda point: "slow",
    )
    autotuner.use_tables({"toy": TABLE}, torch.get_num_threads())
    yield made
    autotuner._TABLES.pop(("toy", torch.get_num_threads()))
    autotuner.clear_choices()


def test_the_nearest_timing_decides(contest: Tunable) -> None:
    assert autotuner.choose(contest, "a", 4, 64) == "fast"
    assert autotuner.choose(contest, "a", 8, 100) == "fast"
    assert autotuner.choose(contest, "a", 4, 3000) == "slow"


def test_without_a_timing_of_the_kind_the_rule_does(contest: Tunable) -> None:
    assert autotuner.choose(contest, "b", 4, 64) == "slow"


def test_of_forms_that_are_as_good_the_rules_is_taken(contest: Tunable) -> None:
    assert autotuner.choose(contest, "close", 4, 64) == "slow"


def test_another_number_of_threads_is_another_table(contest: Tunable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    monkeypatch.setenv(autotuner.VARIABLE, "off")
    assert autotuner.choose(contest, "a", 4, 64) == "slow"
    assert "off" in autotuner.find_table(contest, 17).source


def test_choices_are_listed_from_where_one_says(contest: Tunable) -> None:
    autotuner.choose(contest, "a", 4, 64)
    autotuner.clear_choices()
    assert autotuner.list_choices() == ""
    autotuner.choose(contest, "a", 4, 3000)
    autotuner.choose(contest, "a", 4, 64)
    assert autotuner.list_choices() == "toy=fast,slow"


def test_what_is_remembered_is_bounded(contest: Tunable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotuner, "MAX_CHOICES", 3)
    for size in range(1, 20):
        autotuner.choose(contest, "a", 4, size)
    assert len(autotuner.CHOICES) <= 3


@given(st.tuples(*[st.integers(0, 10**7)] * 2))
def test_any_size_has_a_form(sizes: tuple[int, int]) -> None:
    toy = Tunable(
        name="toy", implementations=("slow", "fast"), points=(), make_candidates=lambda p: {}, rule=lambda p: "slow"
    )
    autotuner.use_tables({"toy": TABLE}, torch.get_num_threads())
    assert autotuner.choose(toy, "a", *sizes) in toy.implementations
