"""Calibration: the faster form is found, time is bounded, and no mode of the caller gets in."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from efficient_attn.bench.measuring.kernel_choices import TUNABLES
from efficient_attn.kernels.autotuning import autotuner, calibration
from efficient_attn.kernels.autotuning.candidates import Tunable, TuningPoint


class Clock:
    """A pretend clock, that goes on where a call waits."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(calibration, "time", clock)
    return clock


def _contest(clock: Clock, points: int, seconds: float, seen: list[object] | None = None) -> Tunable:
    def prepare(point: TuningPoint) -> dict:
        x = torch.ones(3)
        if seen is not None:
            seen.append((x, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        takes = {"quick": seconds, "slow": 2 * seconds, "hopeless": 0.02}
        return {form: partial(clock.wait, took) for form, took in takes.items()}

    every = tuple(TuningPoint("a", (i,)) for i in range(points))
    return Tunable(
        name="toy",
        implementations=("slow", "quick", "hopeless"),
        points=every,
        make_candidates=prepare,
        rule=lambda p: "slow",
    )


def test_the_faster_form_is_faster(clock: Clock) -> None:
    table = calibration.calibrate(_contest(clock, 2, 5e-4), 1)
    assert len(table.timings) == 2
    for _, times in table.timings:
        assert times == pytest.approx({"quick": 5e-4, "slow": 1e-3, "hopeless": 0.02})
    assert table.seconds == pytest.approx(clock.now)


def test_time_is_bounded(clock: Clock) -> None:
    table = calibration.calibrate(_contest(clock, 1000, 1e-3), 1)
    assert len(table.timings) > 1
    assert calibration.LIMIT_S < clock.now < calibration.LIMIT_S + 0.1  # the point that is begun is ended


def test_modes_of_the_caller_stay_outside(clock: Clock) -> None:
    seen: list = []
    random = torch.random.get_rng_state()
    with torch.device("meta"), torch.autocast("cpu"):
        calibration.calibrate(_contest(clock, 1, 1e-4, seen), torch.get_num_threads())
    ((x, grads, autocast),) = seen
    assert (x.device.type, grads, autocast) == ("cpu", False, False)
    assert torch.equal(random, torch.random.get_rng_state())


def test_what_fails_is_raised() -> None:
    def prepare(point: TuningPoint) -> dict:
        raise ZeroDivisionError("there")

    broken = Tunable(
        name="toy", implementations=("a",), points=(TuningPoint("a", ()),), make_candidates=prepare, rule=lambda p: "a"
    )
    with pytest.raises(ZeroDivisionError, match="there"):
        calibration.calibrate(broken, 1)


@pytest.mark.parametrize("contest", TUNABLES, ids=lambda contest: contest.name)
def test_contests_are_whole(contest: Tunable) -> None:
    """Every point has calls that run; a rule names a form that can serve there; the first form always can."""
    for point in contest.points:
        calls = contest.make_candidates(point)
        assert set(calls) <= set(contest.implementations)
        assert contest.rule(point) in calls
        assert contest.implementations[0] in calls
    with torch.no_grad():
        for call in contest.make_candidates(contest.points[0]).values():
            call()
    assert autotuner.select_implementation(contest, 1, contest.points[0]) in contest.implementations
