"""Overrides of sessions, as run.json records them."""

from __future__ import annotations

import pytest

from efficient_attn.results.overrides import gather_overrides


@pytest.mark.parametrize(
    "session", [{}, {"trial": None}, {"trial": []}, {"trial": "--quick"}, {"command": "run a --quick"}]
)
def test_sessions_without_a_list_have_no_overrides(session: dict[str, object]) -> None:
    assert gather_overrides([session]) == ()


def test_a_run_has_the_overrides_of_all_its_sessions() -> None:
    sessions = [{"trial": ["--quick", "--seed 3"]}, {"command": "efficient-attn run a"}, {"trial": ["--quick"]}]
    assert gather_overrides(sessions) == ("--quick", "--seed 3")
