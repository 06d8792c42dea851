"""Calibration: the faster form is found, time is bounded, and no mode of the caller gets in."""

from __future__ import annotations

import time

import pytest
import torch

from efficient_attn.kernels import contests
from efficient_attn.kernels.choices import calibration, desk
from efficient_attn.kernels.choices.contest import Contest, Point


def _wait(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _contest(points: int, seconds: float, seen: list[object] | None = None) -> Contest:
    def prepare(point: Point) -> dict:
        x = torch.ones(3)
        if seen is not None:
            seen.append((x, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return {"quick": lambda: _wait(seconds), "slow": lambda: _wait(2 * seconds), "hopeless": lambda: _wait(0.02)}

    every = tuple(Point("a", (i,)) for i in range(points))
    return Contest(
        name="toy", forms=("slow", "quick", "hopeless"), points=every, prepare=prepare, rule=lambda p: "slow"
    )


def test_the_faster_form_is_faster() -> None:
    table = calibration.calibrate(_contest(2, 5e-4), 1)
    assert len(table.timings) == 2
    for _, times in table.timings:
        assert times["quick"] < times["slow"] < times["hopeless"]


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "LIMIT_S", 0.1)
    table = calibration.calibrate(_contest(1000, 1e-3), 1)
    assert 0 < len(table.timings) < 30


def test_modes_of_the_caller_stay_outside() -> None:
    seen: list = []
    random = torch.random.get_rng_state()
    with torch.device("meta"), torch.autocast("cpu"):
        calibration.calibrate(_contest(1, 1e-4, seen), torch.get_num_threads())
    ((x, grads, autocast),) = seen
    assert (x.device.type, grads, autocast) == ("cpu", False, False)
    assert torch.equal(random, torch.random.get_rng_state())


def test_what_fails_is_raised() -> None:
    def prepare(point: Point) -> dict:
        raise ZeroDivisionError("there")

    broken = Contest(name="toy", forms=("a",), points=(Point("a", ()),), prepare=prepare, rule=lambda p: "a")
    with pytest.raises(ZeroDivisionError, match="there"):
        calibration.calibrate(broken, 1)


@pytest.mark.parametrize("contest", contests.ALL, ids=lambda contest: contest.name)
def test_contests_are_whole(contest: Contest) -> None:
    """Every point has calls that run; a rule names a form that can serve there; the first form always can."""
    for point in contest.points:
        calls = contest.prepare(point)
        assert set(calls) <= set(contest.forms)
        assert contest.rule(point) in calls
        assert contest.forms[0] in calls
    with torch.no_grad():
        for call in contest.prepare(contest.points[0]).values():
            call()
    assert desk.decide(contest, 1, contest.points[0]) in contest.forms
