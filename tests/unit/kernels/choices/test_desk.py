"""The nearest timing decides; a rule where there is none, or where forms are as good as each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.kernels.choices import desk
from efficient_attn.kernels.choices.contest import Contest, Point, Table

TABLE = Table(
    (
        (Point("a", (4, 64)), {"slow": 2.0, "fast": 1.0}),
        (Point("a", (4, 4096)), {"slow": 1.0, "fast": 2.0}),
        (Point("close", (4, 64)), {"slow": 1.05, "fast": 1.0}),
    )
)


@pytest.fixture
def contest() -> Contest:
    made = Contest(name="toy", forms=("slow", "fast"), points=(), prepare=lambda point: {}, rule=lambda point: "slow")
    desk.use({"toy": TABLE}, torch.get_num_threads())
    yield made
    desk._TABLES.pop(("toy", torch.get_num_threads()))
    desk.forget()


def test_the_nearest_timing_decides(contest: Contest) -> None:
    assert desk.choose(contest, "a", 4, 64) == "fast"
    assert desk.choose(contest, "a", 8, 100) == "fast"
    assert desk.choose(contest, "a", 4, 3000) == "slow"


def test_without_a_timing_of_the_kind_the_rule_does(contest: Contest) -> None:
    assert desk.choose(contest, "b", 4, 64) == "slow"


def test_of_forms_that_are_as_good_the_rules_is_taken(contest: Contest) -> None:
    assert desk.choose(contest, "close", 4, 64) == "slow"


def test_another_number_of_threads_is_another_table(contest: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    monkeypatch.setenv(desk.VARIABLE, "off")
    assert desk.choose(contest, "a", 4, 64) == "slow"
    assert "off" in desk.find_table(contest, 17).source


def test_choices_are_listed_from_where_one_says(contest: Contest) -> None:
    desk.choose(contest, "a", 4, 64)
    desk.forget()
    assert desk.list_choices() == ""
    desk.choose(contest, "a", 4, 3000)
    desk.choose(contest, "a", 4, 64)
    assert desk.list_choices() == "toy=fast,slow"


def test_what_is_remembered_is_bounded(contest: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MOST", 3)
    for size in range(1, 20):
        desk.choose(contest, "a", 4, size)
    assert len(desk.CHOSEN) <= 3


@given(st.tuples(*[st.integers(0, 10**7)] * 2))
def test_any_size_has_a_form(sizes: tuple[int, int]) -> None:
    toy = Contest(name="toy", forms=("slow", "fast"), points=(), prepare=lambda p: {}, rule=lambda p: "slow")
    desk.use({"toy": TABLE}, torch.get_num_threads())
    assert desk.choose(toy, "a", *sizes) in toy.forms
