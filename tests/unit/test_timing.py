"""Timing on a clock that the tests turn: how much is measured, in what order, and what is said when it stops early."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from efficient_attn.bench import timing
from efficient_attn.bench.timing import PASSES, Subject, Timing, TooSlow, calibrate, interleave


class Clock:
    """Time that passes only when a subject runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def subject(self, seconds: float, name: str = "", *, limit: int = 1_000_000) -> Subject:
        def run(count: int) -> None:
            self.order.append(name)
            self.now += seconds * count

        return Subject(run, lambda: self.order.append(f"reset {name}"), limit)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


# -- calibration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "calls", "passes", "rounds", "reason"),
    [
        (0.0011, 2, 3, 8, "rounds"),  # two calls fill a block of 2 ms
        (0.5, 1, 3, 8, "rounds"),
        (5.0, 1, 1, 8, "budget"),  # 12 passes are affordable: a pass a round
        (3.7, 1, 2, 8, "budget"),
        (20.0, 1, 1, 3, "budget"),
        (59.0, 1, 1, 1, "budget"),
        (0.0, 20_000, 3, 8, "rounds"),  # faster than the clock can tell
    ],
)
def test_calls_passes_and_rounds_fit_the_budget(
    clock: Clock, seconds: float, calls: int, passes: int, rounds: int, reason: str
) -> None:
    found = calibrate(clock.subject(seconds), rounds=8, budget_s=60, device="cpu")
    assert (found.calls, found.passes, found.rounds, found.stop_reason) == (calls, passes, rounds, reason)
    assert found.samples == []


def test_a_limit_caps_the_calls_of_a_pass(clock: Clock) -> None:
    assert calibrate(clock.subject(1e-6, limit=32), rounds=8, budget_s=60, device="cpu").calls == 32


def test_one_call_over_the_budget_is_too_slow(clock: Clock) -> None:
    with pytest.raises(TooSlow, match="one call takes 61 s, the budget is 60 s"):
        calibrate(clock.subject(61), rounds=8, budget_s=60, device="cpu")
    assert clock.order == ["reset ", ""]  # and no second one is made


def test_a_slow_first_call_does_not_spoil_the_estimate(clock: Clock) -> None:
    costs = iter([3.0, 0.5, 0.001, 0.001])
    found = calibrate(
        Subject(lambda count: setattr(clock, "now", clock.now + next(costs))), rounds=8, budget_s=60, device="cpu"
    )
    assert found.calls == 2 or found.calls == 3


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seconds=st.floats(1e-6, 50), budget=st.floats(0.01, 100), rounds=st.integers(2, 20))
def test_no_plan_costs_more_than_the_budget(clock: Clock, seconds: float, budget: float, rounds: int) -> None:
    subject = clock.subject(seconds)
    try:
        found = calibrate(subject, rounds=rounds, budget_s=budget, device="cpu")
    except TooSlow:
        assert seconds > budget * 0.999
        return
    cost = found.rounds * found.passes * found.calls * seconds
    assert cost <= budget * 1.001 or found.rounds == found.passes == 1
    assert 1 <= found.rounds <= rounds
    assert 1 <= found.passes <= PASSES
    assert (found.stop_reason == "rounds") == (found.rounds == rounds and found.passes == PASSES)


# -- interleaving ------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")


def _interleaved(clock: Clock, seed: int, **timings: Timing) -> dict[str, Timing]:
    found = {name: Timing(2, 3, 4, "rounds") for name in NAMES} | timings
    interleave({n: clock.subject(0.001 * (i + 1), n) for i, n in enumerate(found)}, found, seed=seed, device="cpu")
    return found


def _runs(clock: Clock) -> list[str]:
    return [name for name in clock.order if not name.startswith("reset")]


def test_every_round_holds_every_subject_and_every_pass(clock: Clock) -> None:
    found = _interleaved(clock, 0)
    runs = _runs(clock)
    rounds = [runs[i : i + 9] for i in range(0, len(runs), 9)]
    assert len(rounds) == 4
    assert all(sorted(turns) == sorted([*NAMES] * 3) for turns in rounds)
    assert all([len(passes) for passes in t.samples] == [3] * 4 for t in found.values())


def test_samples_are_milliseconds_a_call(clock: Clock) -> None:
    found = _interleaved(clock, 0)
    for i, name in enumerate(NAMES):
        assert found[name].samples[0] == pytest.approx([i + 1.0] * 3)
        assert found[name].medians == pytest.approx([i + 1.0] * 4)


def test_the_order_is_shuffled_by_the_seed_alone(clock: Clock) -> None:
    orders = []
    for seed in (0, 0, 1):
        clock.order.clear()
        _interleaved(clock, seed)
        orders.append(_runs(clock))
    assert orders[0] == orders[1] != orders[2]
    assert len({tuple(orders[0][i : i + 9]) for i in range(0, 36, 9)}) > 1  # anew each round


def test_a_reset_comes_before_each_pass(clock: Clock) -> None:
    _interleaved(clock, 0)
    assert clock.order[::2] == [f"reset {name}" for name in clock.order[1::2]]


def test_a_subject_with_fewer_rounds_stops_and_the_others_go_on(clock: Clock) -> None:
    found = _interleaved(clock, 0, b=Timing(1, 1, 2, "budget"))
    assert {name: len(t.samples) for name, t in found.items()} == {"a": 4, "b": 2, "c": 4}
    assert "b" not in _runs(clock)[14:]


def test_nothing_to_time_is_no_error() -> None:
    interleave({}, {}, seed=0, device="cpu")


def _during(subject: Subject) -> dict[str, Timing]:
    found = {"a": Timing(1, 1, 1, "rounds")}
    interleave({"a": subject}, found, seed=0, device="cpu")
    return found


def test_garbage_is_not_collected_while_timing_and_is_again_behind() -> None:
    seen = []
    assert gc.isenabled()
    _during(Subject(lambda count: seen.append(gc.isenabled())))
    assert seen == [False]
    assert gc.isenabled()


def _failing(error: BaseException) -> Subject:
    def run(count: int) -> None:
        raise error

    return Subject(run)


def test_garbage_collection_comes_back_after_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        _during(_failing(KeyboardInterrupt()))
    assert gc.isenabled()


def test_a_subject_that_fails_drops_out_and_the_others_go_on(clock: Clock) -> None:
    calls = iter(range(5))

    def run(count: int) -> None:
        clock.now += 1
        if next(calls) == 4:
            raise RuntimeError("on the fifth")

    found = {"a": Timing(1, 3, 4, "rounds"), "b": Timing(1, 3, 4, "rounds")}
    failed = interleave({"a": clock.subject(1, "a"), "b": Subject(run)}, found, seed=0, device="cpu")
    assert {name: str(error) for name, error in failed.items()} == {"b": "on the fifth"}
    assert [len(passes) for passes in found["a"].samples] == [3] * 4
    assert [len(passes) for passes in found["b"].samples] == [3]  # no half round
    assert next(calls, None) is None  # and it was not asked again


def test_garbage_collection_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        _during(Subject(lambda count: None))
        assert not gc.isenabled()
    finally:
        gc.enable()


# -- what it comes to --------------------------------------------------------------------------------------------


def test_the_latency_is_the_median_of_the_rounds_medians() -> None:
    samples = [[1.0, 2.0, 9.0], [3.0, 3.0, 3.0], [2.5, 50.0, 1.0]]
    found = Timing(1, 3, 3, "rounds", samples)
    assert found.medians == [2.0, 3.0, 2.5]
    value, low, high = found.latency
    assert value == 2.5
    assert low is not None
    assert high is not None
    assert low < value < high


def test_one_round_gives_no_interval() -> None:
    assert Timing(1, 1, 1, "budget", [[4.0]]).latency == (4.0, None, None)


def test_the_interval_holds_the_value_however_skewed_the_rounds_are() -> None:
    value, low, high = Timing(1, 1, 9, "rounds", [[x] for x in (1, 1, 1, 1, 1, 1, 1, 1, 1000)]).latency
    assert (low or 0) <= value <= (high or 0)
