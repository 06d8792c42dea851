"""Timing with a simulated clock: calibration, sampling, order, disturbance and verification."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.instruments import timing
from efficient_attn.instruments.timing import (
    MAX_RETRIES,
    MAX_SAMPLES_PER_ROUND,
    SAMPLES_PER_ROUND,
    RoundPlan,
    RoundSamples,
    SampleCost,
    TimedCall,
    TooSlow,
    calibrate,
    plan_samples,
    run_rounds,
    time_first_call,
)


class Clock:
    """Wall and processor time that pass only in calls; processor time does not pass while waiting."""

    def __init__(self) -> None:
        self.now = self.processor = 0.0
        self.order: list[str] = []

    def pass_by(self, seconds: float, *, waiting: float = 0.0) -> None:
        self.now += seconds + waiting
        self.processor += seconds

    def subject(self, seconds: float, name: str = "", *, limit: int = 1_000_000) -> TimedCall:
        def run(count: int) -> None:
            self.order.append(name)
            self.pass_by(seconds * count)

        return TimedCall(run, lambda count: self.order.append(f"reset {name}"), max_calls=limit)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(timing, "process_time", lambda: clock.processor)
    return clock


# -- calibration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "calls"),
    [(0.0011, 2), (0.5, 1), (5.0, 1), (0.0, 20_000)],  # two calls fill a block of 2 ms; 0.0 is too short to measure
)
def test_calibration_fills_a_block_with_calls(clock: Clock, seconds: float, calls: int) -> None:
    cost = calibrate(clock.subject(seconds), budget_s=60, device="cpu")
    assert cost == SampleCost(calls, pytest.approx(max(seconds, 1e-7) * calls), pytest.approx(0))


def test_setup_time_counts_towards_the_budget(clock: Clock) -> None:
    subject = TimedCall(lambda count: clock.pass_by(0.001 * count), lambda count: clock.pass_by(0.1))
    cost = calibrate(subject, budget_s=60, device="cpu")
    assert cost == SampleCost(2, pytest.approx(0.002), pytest.approx(0.1))
    assert plan_samples({"a": cost}, rounds=8, processes=4, budget_s=60)["a"].samples == SAMPLES_PER_ROUND
    assert plan_samples({"a": cost}, rounds=8, processes=4, budget_s=1)["a"].samples == 1


def test_calibration_respects_limits_of_calls(clock: Clock) -> None:
    assert calibrate(clock.subject(1e-6, limit=32), budget_s=60, device="cpu").calls == 32
    subject = clock.subject(1.0)
    assert calibrate(TimedCall(subject.run, min_calls=16), budget_s=60, device="cpu").calls == 16


def test_one_call_over_the_budget_is_too_slow(clock: Clock) -> None:
    with pytest.raises(TooSlow, match="one call takes 61 s, the budget is 60 s"):
        time_first_call(clock.subject(61), budget_s=60, device="cpu")
    assert time_first_call(clock.subject(59), budget_s=60, device="cpu") == 59


@pytest.mark.parametrize(
    ("seconds", "samples"),
    [
        ((0.002, 0.002), MAX_SAMPLES_PER_ROUND),  # fast: the maximum
        ((0.02, 0.02), 7),  # 0.25 s per round
        ((0.5, 0.002), SAMPLES_PER_ROUND),
    ],
)
def test_fast_groups_have_more_samples_per_round(seconds: tuple[float, ...], samples: int) -> None:
    plans = plan_samples({str(i): SampleCost(1, s) for i, s in enumerate(seconds)}, rounds=8, processes=4, budget_s=60)
    assert {plan.samples for plan in plans.values()} == {samples}


def test_slow_cases_have_fewer_samples_than_others() -> None:
    plans = plan_samples({"fast": SampleCost(1, 0.5), "slow": SampleCost(1, 5.0)}, rounds=8, processes=4, budget_s=60)
    assert (plans["fast"].samples, plans["slow"].samples) == (3, 1)


@settings(max_examples=100, deadline=None)
@given(block=st.floats(1e-4, 100), budget=st.floats(0.1, 100), rounds=st.integers(2, 20), chunk=st.integers(1, 4))
def test_no_process_run_exceeds_the_remaining_budget(block: float, budget: float, rounds: int, chunk: int) -> None:
    plan = plan_samples({"a": SampleCost(1, block)}, rounds=rounds, processes=4, budget_s=budget)["a"]
    assert 1 <= plan.samples <= MAX_SAMPLES_PER_ROUND
    left, taken = budget, 0
    while count := min(chunk, plan.count_affordable_rounds(left)):
        left -= plan.cost.warm_up_s + count * plan.samples * block
        taken += count
        assert left >= -1e-9
        if taken > 1000:
            break
    if budget >= (rounds * SAMPLES_PER_ROUND + rounds) * block:  # enough for all rounds and a warm-up for each
        assert taken >= rounds


# -- a process run -----------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")


def _run_rounds(clock: Clock, seed: int, *, rounds: dict[str, int] | None = None) -> list[RoundSamples]:
    subjects = {n: clock.subject(0.001 * (i + 1), n) for i, n in enumerate(NAMES)}
    plans = {n: RoundPlan(SampleCost(2, 0.002 * (i + 1)), 3) for i, n in enumerate(NAMES)}
    counts = dict.fromkeys(NAMES, 4) | (rounds or {})
    return list(run_rounds(subjects, plans, counts, seed=seed, device="cpu"))


def _list_runs(clock: Clock) -> list[str]:
    return [name for name in clock.order if not name.startswith("reset")]


def test_all_cases_are_warmed_up_and_sampled_in_every_round(clock: Clock) -> None:
    results = _run_rounds(clock, 0)
    runs = _list_runs(clock)
    assert runs[:3] == list(NAMES)
    rounds = [runs[i : i + 9] for i in range(3, len(runs), 9)]
    assert len(rounds) == len(results) == 4
    assert all(sorted(names) == sorted([*NAMES] * 3) for names in rounds)
    assert all([len(r.samples[n]) for n in NAMES] == [3] * 3 for r in results)


def test_samples_are_milliseconds_per_call(clock: Clock) -> None:
    for result in _run_rounds(clock, 0):
        assert all(result.samples[name] == pytest.approx([i + 1.0] * 3) for i, name in enumerate(NAMES))


def test_the_order_depends_on_the_seed_only(clock: Clock) -> None:
    orders = []
    for seed in (0, 0, 1):
        clock.order.clear()
        _run_rounds(clock, seed)
        orders.append(_list_runs(clock)[3:])
    assert orders[0] == orders[1] != orders[2]
    assert len({tuple(orders[0][i : i + 9]) for i in range(0, 36, 9)}) > 1  # reshuffled in each round


def test_each_sample_starts_with_a_reset(clock: Clock) -> None:
    _run_rounds(clock, 0)
    assert clock.order[::2] == [f"reset {name}" for name in clock.order[1::2]]


def test_cases_with_fewer_rounds_end_earlier(clock: Clock) -> None:
    rounds = _run_rounds(clock, 0, rounds={"b": 2})
    assert [sorted(r.samples) for r in rounds] == [["a", "b", "c"]] * 2 + [["a", "c"]] * 2


def test_slow_cases_are_not_warmed_up(clock: Clock) -> None:
    plans = {"a": RoundPlan(SampleCost(1, 2.0), 1)}
    list(run_rounds({"a": clock.subject(2, "a")}, plans, {"a": 1}, seed=0, device="cpu"))
    assert _list_runs(clock) == ["a"]


def test_no_cases_give_no_rounds() -> None:
    assert list(run_rounds({}, {}, {}, seed=0, device="cpu")) == []


def _time_two_rounds(subject: TimedCall, **options: object) -> list[RoundSamples]:
    plans, counts = {"a": RoundPlan(SampleCost(1, 2.0), 3)}, {"a": 2}
    return list(run_rounds({"a": subject}, plans, counts, seed=0, device="cpu", **options))  # type: ignore[arg-type]


def test_garbage_collection_is_disabled_while_timing() -> None:
    seen = []
    assert gc.isenabled()
    _time_two_rounds(TimedCall(lambda count: seen.append(gc.isenabled())))
    assert set(seen) == {False}
    assert gc.isenabled()


def test_garbage_collection_stays_disabled_if_it_was() -> None:
    gc.disable()
    try:
        _time_two_rounds(TimedCall(lambda count: None))
        assert not gc.isenabled()
    finally:
        gc.enable()


def _failing(error: BaseException) -> TimedCall:
    def run(count: int) -> None:
        raise error

    return TimedCall(run)


def test_garbage_collection_is_enabled_after_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        _time_two_rounds(_failing(KeyboardInterrupt()))
    assert gc.isenabled()


@pytest.mark.parametrize("at_call", [1, 2, 6])  # in the warm-up, the first round and a later one
def test_a_failed_case_is_dropped_and_others_continue(clock: Clock, at_call: int) -> None:
    calls = iter(range(1, at_call + 1))

    def run(count: int) -> None:
        clock.pass_by(0.1)
        if next(calls) == at_call:
            raise RuntimeError("enough")

    plans = {name: RoundPlan(SampleCost(1, 0.1), 3) for name in ("a", "b")}
    subjects = {"a": clock.subject(0.1, "a"), "b": TimedCall(run)}
    rounds = list(run_rounds(subjects, plans, {"a": 4, "b": 4}, seed=0, device="cpu"))
    assert [str(e) for r in rounds for e in r.errors.values()] == ["enough"]
    assert [len(r.samples["a"]) for r in rounds] == [3] * 4
    assert next(calls, None) is None  # it was not called again


# -- disturbance -------------------------------------------------------------------------------------------------


def _waiting(clock: Clock, *waits: float) -> TimedCall:
    remaining = iter(waits)
    return TimedCall(lambda count: clock.pass_by(0.1, waiting=next(remaining, 0.0)))


def test_disturbed_samples_are_kept_counted_and_repeated(clock: Clock) -> None:
    first, second = _time_two_rounds(_waiting(clock, 0.0, 0.05), single_thread=True)
    assert first.samples["a"] == pytest.approx([100, 150, 100, 100])
    assert first.disturbed == {"a": 1}
    assert second.samples["a"] == pytest.approx([100] * 3)
    assert second.disturbed == {}


def test_retries_of_disturbed_samples_are_limited(clock: Clock) -> None:
    first, _ = _time_two_rounds(_waiting(clock, *[0.05] * 100), single_thread=True)
    assert len(first.samples["a"]) == 3 + MAX_RETRIES
    assert first.disturbed["a"] == 3 + MAX_RETRIES


def test_waiting_is_ignored_with_several_threads(clock: Clock) -> None:
    first, _ = _time_two_rounds(_waiting(clock, *[0.05] * 100))
    assert len(first.samples["a"]) == 3
    assert first.disturbed == {}


def test_an_error_after_a_sample_ends_the_case(clock: Clock) -> None:
    def fail(name: str) -> None:
        raise timing.GlobalStateChanged(f"{name} meddled")

    first, second = _time_two_rounds(clock.subject(0.1, "a"), after_sample=fail)
    assert str(first.errors["a"]) == "a meddled"
    assert second.samples == {}


# -- verification ----------------------------------------------------------------------------------------------------


def test_one_random_sample_of_each_round_is_verified(clock: Clock) -> None:
    verified: list[int] = []
    timed = clock.subject(0.1, "a")
    timed.verify = lambda: verified.append(len([name for name in clock.order if name == "a"]))
    plans = {"a": RoundPlan(SampleCost(1, 0.1), 5)}
    rounds = run_rounds({"a": timed}, plans, {"a": 40}, seed=3, device="cpu")
    assert [len(r.samples["a"]) for r in rounds] == [5] * 40
    positions = [(number - 2) % 5 for number in verified]  # after the warm-up
    assert len(positions) == 40
    assert set(positions) == set(range(5))
    assert [(number - 2) // 5 for number in verified] == list(range(40))


def test_a_sample_that_fails_verification_is_discarded(clock: Clock) -> None:
    def refuse() -> None:
        raise ValueError("wrong")

    timed = clock.subject(0.1, "a")
    timed.verify = refuse
    plans = {"a": RoundPlan(SampleCost(1, 0.1), 1)}
    first, second = run_rounds({"a": timed}, plans, {"a": 2}, seed=3, device="cpu")
    assert (str(first.errors["a"]), first.samples["a"]) == ("wrong", [])
    assert second.samples == {}


@pytest.mark.parametrize(
    ("single_thread", "parallel_samples", "taken", "message"),
    [
        (True, {1, 2, 3, 4, 5}, 5, "1.9 processors worked at once for it, where one thread is requested"),
        (True, {2, 3, 4}, 5, ""),  # another thread's processor time, accounted late: repeated, but no error
        (False, {1, 2, 3, 4, 5}, 2, ""),
    ],
)
def test_additional_threads_are_detected_if_one_is_requested(
    clock: Clock, single_thread: bool, parallel_samples: set[int], taken: int, message: str
) -> None:
    counts = []

    def run(count: int) -> None:
        counts.append(count)
        clock.pass_by(0.1 * count)
        clock.processor += 0.09 * count * (len(counts) in parallel_samples)

    plans, subjects = {"a": RoundPlan(SampleCost(1, 0.1), 1)}, {"a": TimedCall(run)}
    (result,) = run_rounds(subjects, plans, {"a": 1}, seed=0, device="cpu", single_thread=single_thread)
    assert "".join(str(error) for error in result.errors.values()) == message
    assert (len(counts), len(result.samples["a"])) == (taken, 0 if message else 1)
