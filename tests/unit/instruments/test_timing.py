"""Timing on a clock that the tests turn: how much is measured, in what order, and what is done about disturbance."""

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
    """Time that passes only when a subject runs; the processor's too, unless something else has it."""

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
    [(0.0011, 2), (0.5, 1), (5.0, 1), (0.0, 20_000)],  # two calls fill a block of 2 ms; the clock may see nothing
)
def test_calls_fill_a_block(clock: Clock, seconds: float, calls: int) -> None:
    found = calibrate(clock.subject(seconds), budget_s=60, device="cpu")
    assert found == SampleCost(calls, pytest.approx(max(seconds, 1e-7) * calls), pytest.approx(0))


def test_what_setting_up_takes_counts_too(clock: Clock) -> None:
    subject = TimedCall(lambda count: clock.pass_by(0.001 * count), lambda count: clock.pass_by(0.1))
    pace = calibrate(subject, budget_s=60, device="cpu")
    assert pace == SampleCost(2, pytest.approx(0.002), pytest.approx(0.1))
    assert plan_samples({"a": pace}, rounds=8, processes=4, budget_s=60)["a"].samples == SAMPLES_PER_ROUND
    assert plan_samples({"a": pace}, rounds=8, processes=4, budget_s=1)["a"].samples == 1


def test_limits_hold(clock: Clock) -> None:
    assert calibrate(clock.subject(1e-6, limit=32), budget_s=60, device="cpu").calls == 32
    most = clock.subject(1.0)
    assert calibrate(TimedCall(most.run, min_calls=16), budget_s=60, device="cpu").calls == 16


def test_one_call_over_the_budget_is_too_slow(clock: Clock) -> None:
    with pytest.raises(TooSlow, match="one call takes 61 s, the budget is 60 s"):
        time_first_call(clock.subject(61), budget_s=60, device="cpu")
    assert time_first_call(clock.subject(59), budget_s=60, device="cpu") == 59


@pytest.mark.parametrize(
    ("seconds", "passes"),
    [
        ((0.002, 0.002), MAX_SAMPLES_PER_ROUND),  # fast: as many as are allowed
        ((0.02, 0.02), 7),  # a quarter of a second a round
        ((0.5, 0.002), SAMPLES_PER_ROUND),
    ],
)
def test_rounds_of_fast_cells_get_more_passes(seconds: tuple[float, ...], passes: int) -> None:
    found = plan_samples({str(i): SampleCost(1, s) for i, s in enumerate(seconds)}, rounds=8, processes=4, budget_s=60)
    assert {turn.samples for turn in found.values()} == {passes}


def test_a_slow_one_gets_fewer_passes_than_the_others() -> None:
    found = plan_samples({"fast": SampleCost(1, 0.5), "slow": SampleCost(1, 5.0)}, rounds=8, processes=4, budget_s=60)
    assert (found["fast"].samples, found["slow"].samples) == (3, 1)


@settings(max_examples=100, deadline=None)
@given(block=st.floats(1e-4, 100), budget=st.floats(0.1, 100), rounds=st.integers(2, 20), per=st.integers(1, 4))
def test_no_sitting_costs_more_than_what_is_left(block: float, budget: float, rounds: int, per: int) -> None:
    turn = plan_samples({"a": SampleCost(1, block)}, rounds=rounds, processes=4, budget_s=budget)["a"]
    assert 1 <= turn.samples <= MAX_SAMPLES_PER_ROUND
    left, taken = budget, 0
    while count := min(per, turn.count_affordable_rounds(left)):
        left -= turn.cost.warm_up_s + count * turn.samples * block
        taken += count
        assert left >= -1e-9
        if taken > 1000:
            break
    if budget >= (rounds * SAMPLES_PER_ROUND + rounds) * block:  # enough for all of them, and a warm-up for each
        assert taken >= rounds


# -- a sitting ---------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")


def _sat(clock: Clock, seed: int, *, rounds: dict[str, int] | None = None) -> list[RoundSamples]:
    subjects = {n: clock.subject(0.001 * (i + 1), n) for i, n in enumerate(NAMES)}
    takes = {n: RoundPlan(SampleCost(2, 0.002 * (i + 1)), 3) for i, n in enumerate(NAMES)}
    counts = dict.fromkeys(NAMES, 4) | (rounds or {})
    return list(run_rounds(subjects, takes, counts, seed=seed, device="cpu"))


def _runs(clock: Clock) -> list[str]:
    return [name for name in clock.order if not name.startswith("reset")]


def test_every_subject_is_warmed_up_then_every_round_holds_every_pass(clock: Clock) -> None:
    found = _sat(clock, 0)
    runs = _runs(clock)
    assert runs[:3] == list(NAMES)
    rounds = [runs[i : i + 9] for i in range(3, len(runs), 9)]
    assert len(rounds) == len(found) == 4
    assert all(sorted(names) == sorted([*NAMES] * 3) for names in rounds)
    assert all([len(r.samples[n]) for n in NAMES] == [3] * 3 for r in found)


def test_samples_are_milliseconds_a_call(clock: Clock) -> None:
    for result in _sat(clock, 0):
        assert all(result.samples[name] == pytest.approx([i + 1.0] * 3) for i, name in enumerate(NAMES))


def test_the_order_is_shuffled_by_the_seed_alone(clock: Clock) -> None:
    orders = []
    for seed in (0, 0, 1):
        clock.order.clear()
        _sat(clock, seed)
        orders.append(_runs(clock)[3:])
    assert orders[0] == orders[1] != orders[2]
    assert len({tuple(orders[0][i : i + 9]) for i in range(0, 36, 9)}) > 1  # anew each round


def test_a_reset_comes_before_each_pass(clock: Clock) -> None:
    _sat(clock, 0)
    assert clock.order[::2] == [f"reset {name}" for name in clock.order[1::2]]


def test_a_subject_with_fewer_rounds_stops_and_the_others_go_on(clock: Clock) -> None:
    found = _sat(clock, 0, rounds={"b": 2})
    assert [sorted(r.samples) for r in found] == [["a", "b", "c"]] * 2 + [["a", "c"]] * 2


def test_what_takes_long_is_not_warmed_up(clock: Clock) -> None:
    plans = {"a": RoundPlan(SampleCost(1, 2.0), 1)}
    list(run_rounds({"a": clock.subject(2, "a")}, plans, {"a": 1}, seed=0, device="cpu"))
    assert _runs(clock) == ["a"]


def test_nothing_to_time_is_no_error() -> None:
    assert list(run_rounds({}, {}, {}, seed=0, device="cpu")) == []


def _during(subject: TimedCall, **options: object) -> list[RoundSamples]:
    takes, counts = {"a": RoundPlan(SampleCost(1, 2.0), 3)}, {"a": 2}
    return list(run_rounds({"a": subject}, takes, counts, seed=0, device="cpu", **options))  # type: ignore[arg-type]


def test_garbage_is_not_collected_while_timing_and_is_again_after() -> None:
    seen = []
    assert gc.isenabled()
    _during(TimedCall(lambda count: seen.append(gc.isenabled())))
    assert set(seen) == {False}
    assert gc.isenabled()


def test_garbage_collection_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        _during(TimedCall(lambda count: None))
        assert not gc.isenabled()
    finally:
        gc.enable()


def _failing(error: BaseException) -> TimedCall:
    def run(count: int) -> None:
        raise error

    return TimedCall(run)


def test_garbage_collection_comes_back_after_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        _during(_failing(KeyboardInterrupt()))
    assert gc.isenabled()


@pytest.mark.parametrize("at_call", [1, 2, 6])  # as it is warmed up, in the first round, in a later one
def test_a_subject_that_fails_drops_out_and_the_others_go_on(clock: Clock, at_call: int) -> None:
    calls = iter(range(1, at_call + 1))

    def run(count: int) -> None:
        clock.pass_by(0.1)
        if next(calls) == at_call:
            raise RuntimeError("enough")

    takes = {name: RoundPlan(SampleCost(1, 0.1), 3) for name in ("a", "b")}
    subjects = {"a": clock.subject(0.1, "a"), "b": TimedCall(run)}
    found = list(run_rounds(subjects, takes, {"a": 4, "b": 4}, seed=0, device="cpu"))
    assert [str(e) for r in found for e in r.errors.values()] == ["enough"]
    assert [len(r.samples["a"]) for r in found] == [3] * 4
    assert next(calls, None) is None  # and it was not asked again


# -- disturbance -------------------------------------------------------------------------------------------------


def _waiting(clock: Clock, *waits: float) -> TimedCall:
    remaining = iter(waits)
    return TimedCall(lambda count: clock.pass_by(0.1, waiting=next(remaining, 0.0)))


def test_a_pass_that_had_to_wait_is_kept_counted_and_repeated(clock: Clock) -> None:
    first, second = _during(_waiting(clock, 0.0, 0.05), single_thread=True)
    assert first.samples["a"] == pytest.approx([100, 150, 100, 100])
    assert first.disturbed == {"a": 1}
    assert second.samples["a"] == pytest.approx([100] * 3)
    assert second.disturbed == {}


def test_repeats_end_when_the_machine_is_never_quiet(clock: Clock) -> None:
    first, _ = _during(_waiting(clock, *[0.05] * 100), single_thread=True)
    assert len(first.samples["a"]) == 3 + MAX_RETRIES
    assert first.disturbed["a"] == 3 + MAX_RETRIES


def test_several_threads_may_use_more_processor_than_time(clock: Clock) -> None:
    first, _ = _during(_waiting(clock, *[0.05] * 100))
    assert len(first.samples["a"]) == 3
    assert first.disturbed == {}


def test_what_is_checked_after_a_pass_can_end_it(clock: Clock) -> None:
    def meddled() -> None:
        raise ValueError("meddled")

    first, second = _during(clock.subject(0.1, "a"), after_sample=meddled)
    assert str(first.errors["a"]) == "meddled"
    assert second.samples == {}


# -- the look at what was timed --------------------------------------------------------------------------------------


def test_one_pass_of_each_round_is_judged_and_which_one_is_drawn(clock: Clock) -> None:
    judged: list[int] = []
    timed = clock.subject(0.1, "a")
    timed.verify = lambda: judged.append(len([name for name in clock.order if name == "a"]))
    plans = {"a": RoundPlan(SampleCost(1, 0.1), 5)}
    rounds = run_rounds({"a": timed}, plans, {"a": 40}, seed=3, device="cpu")
    assert [len(r.samples["a"]) for r in rounds] == [5] * 40
    passes = [(number - 2) % 5 for number in judged]  # after the one that warms it up
    assert len(passes) == 40
    assert set(passes) == set(range(5))
    assert [(number - 2) // 5 for number in judged] == list(range(40))


def test_what_is_judged_wrong_ends_without_that_pass(clock: Clock) -> None:
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
        (True, {2, 3, 4}, 5, ""),  # another thread's processor time, accounted late: repeated, and not counted
        (False, {1, 2, 3, 4, 5}, 2, ""),
    ],
)
def test_threads_are_seen_where_one_is_asked_for(
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
