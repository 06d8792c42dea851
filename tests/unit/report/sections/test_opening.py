"""What a page says first: a noisy machine, in its rounds or at its start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report.sections.opening import find_disturbed, sum_up, warn_of_noise
from efficient_attn.results.frames import frame

STARTED = {"readiness": {"warning": "other programs used 1.3 cores, load 2.10"}}


def _rows(contaminated: int, **known: Any) -> Any:
    made = runs.row("full", mode="forward", seq_len=64, rounds=10, contaminated=contaminated, **known)
    return frame([made, replace(made, case_key="lost", status="timeout", contaminated=10)])


def test_what_failed_counts_no_rounds() -> None:
    assert find_disturbed(_rows(1)) == pytest.approx(0.1)
    assert find_disturbed(_rows(1).assign(rounds=None)) is None
    assert find_disturbed(frame([])) is None


@pytest.mark.parametrize(
    ("contaminated", "sessions", "says"),
    [
        (0, [], ""),
        (2, [{}, {"readiness": None}, {"readiness": {"warning": None}}], ""),
        (6, [], "Measured on a noisy machine (something else disturbed 60% of the rounds). Small differences"),
        (0, [STARTED, STARTED], "Measured on a noisy machine (at the start: other programs used 1.3 cores, load 2.10)"),
        (6, [STARTED], "Measured on a noisy machine (something else disturbed 60% of the rounds; at the start: other"),
    ],
)
def test_a_noisy_machine_is_a_warning(contaminated: int, sessions: list[dict[str, Any]], says: str) -> None:
    warning = warn_of_noise(_rows(contaminated), sessions)
    assert warning.startswith(says)
    assert bool(warning) == bool(says)


def test_few_disturbed_rounds_are_a_sentence_of_the_summary() -> None:
    assert "Something else disturbed 10% of the rounds; the intervals include that." in sum_up(_rows(1))
    assert "disturbed" not in sum_up(_rows(0))
