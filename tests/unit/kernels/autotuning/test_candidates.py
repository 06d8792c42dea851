"""Calibration: implementations are timed, time is bounded, and the caller's modes have no influence."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from efficient_attn.bench.measuring.kernel_choices import TUNABLES
from efficient_attn.kernels.autotuning import autotuner, candidates
from efficient_attn.kernels.autotuning.candidates import Tunable, TuningPoint


class Clock:
    """A fake clock that advances when a call waits."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(candidates, "time", clock)
    return clock


def _make_tunable(clock: Clock, points: int, seconds: float, observed: list[object] | None = None) -> Tunable:
    def prepare(point: TuningPoint) -> dict:
        x = torch.ones(3)
        if observed is not None:
            observed.append((x, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        durations = {"quick": seconds, "slow": 2 * seconds, "hopeless": 0.02}
        return {name: partial(clock.wait, duration) for name, duration in durations.items()}

    tuning_points = tuple(TuningPoint("a", (i,)) for i in range(points))
    return Tunable(
        name="toy",
        implementations=("slow", "quick", "hopeless"),
        points=tuning_points,
        make_candidates=prepare,
        rule=lambda p: "slow",
    )


def test_timings_of_all_implementations_are_measured(clock: Clock) -> None:
    table = candidates.calibrate(_make_tunable(clock, 2, 5e-4), 1)
    assert len(table.timings) == 2
    for _, times in table.timings:
        assert times == pytest.approx({"quick": 5e-4, "slow": 1e-3, "hopeless": 0.02})
    assert table.seconds == pytest.approx(clock.now)


def test_calibration_time_is_bounded(clock: Clock) -> None:
    table = candidates.calibrate(_make_tunable(clock, 1000, 1e-3), 1)
    assert len(table.timings) > 1
    assert candidates.LIMIT_S < clock.now < candidates.LIMIT_S + 0.1  # the last point is completed


def test_modes_of_the_caller_have_no_influence(clock: Clock) -> None:
    observed: list = []
    rng_state = torch.random.get_rng_state()
    with torch.device("meta"), torch.autocast("cpu"):
        candidates.calibrate(_make_tunable(clock, 1, 1e-4, observed), torch.get_num_threads())
    ((x, grads, autocast),) = observed
    assert (x.device.type, grads, autocast) == ("cpu", False, False)
    assert torch.equal(rng_state, torch.random.get_rng_state())


def test_exceptions_of_candidates_are_raised() -> None:
    def prepare(point: TuningPoint) -> dict:
        raise ZeroDivisionError("there")

    broken = Tunable(
        name="toy", implementations=("a",), points=(TuningPoint("a", ()),), make_candidates=prepare, rule=lambda p: "a"
    )
    with pytest.raises(ZeroDivisionError, match="there"):
        candidates.calibrate(broken, 1)


@pytest.mark.parametrize("tunable", TUNABLES, ids=lambda tunable: tunable.name)
def test_tunables_are_complete(tunable: Tunable) -> None:
    """Rules name available candidates; the first implementation is always available; candidates run."""
    for point in tunable.points:
        calls = tunable.make_candidates(point)
        assert set(calls) <= set(tunable.implementations)
        assert tunable.rule(point) in calls
        assert tunable.implementations[0] in calls
    with torch.no_grad():
        for call in tunable.make_candidates(tunable.points[0]).values():
            call()
    assert autotuner.select_implementation(tunable, 1, tunable.points[0]) in tunable.implementations
