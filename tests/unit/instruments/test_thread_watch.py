"""Threads that work for a case in the turns of others, or after its calls, are attributed to the case."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from efficient_attn.instruments.thread_watch import MIN_FOREIGN_S, MIN_LATE_S, ThreadWatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists threads")
FIRST, SECOND = 0, 1


def _work(seconds: float) -> None:
    """Use so much processor time of this thread."""
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


@contextmanager
def _run_thread(work: Callable[[], object]) -> Iterator[None]:
    """A thread that repeats the work until the end of this context."""
    ending = threading.Event()

    def repeat() -> None:
        while not ending.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _wait_for_work(seconds: float) -> None:
    """Wait until other threads have used so much processor time."""
    start = time.process_time() - time.thread_time()
    while time.process_time() - time.thread_time() - start < seconds:
        time.sleep(0.001)


def _take_turn(watch: ThreadWatch, case: int, others_s: float = 0.0) -> float:
    watch.stop_clock()
    _wait_for_work(others_s)
    return watch.end_turn(case)


@pytest.mark.parametrize("single_thread", [True, False])
def test_a_busy_thread_is_attributed_to_the_case_that_started_it(single_thread: bool) -> None:
    watch = ThreadWatch(single_thread=single_thread)
    _take_turn(watch, FIRST)
    with _run_thread(lambda: _work(0.001)):
        _take_turn(watch, SECOND)
        assert watch.find_culprit() is None
        for _ in range(50):  # a pause of the machine makes the share of one turn too small
            _take_turn(watch, FIRST, 10 * MIN_FOREIGN_S)
            if culprit := watch.find_culprit():
                break
    assert culprit is not None
    assert culprit[0] == SECOND
    assert "a thread that it started worked for" in culprit[1]


def test_a_thread_from_before_all_cases_has_no_owner() -> None:
    with _run_thread(lambda: _work(0.001)):
        watch = ThreadWatch(single_thread=True)
        _take_turn(watch, FIRST, 10 * MIN_FOREIGN_S)
        culprit = watch.find_culprit()
    assert culprit is not None
    assert culprit[0] is None
    assert culprit[1].startswith("a thread from before all cases worked for")


@pytest.mark.parametrize("single_thread", [True, False])
def test_work_after_the_clock_is_late(single_thread: bool) -> None:
    watch = ThreadWatch(single_thread=single_thread)
    with _run_thread(lambda: _work(0.001)):
        assert _take_turn(watch, FIRST, 2 * MIN_LATE_S) > MIN_LATE_S
    assert watch.find_culprit() is None


def test_work_of_a_thread_that_has_ended_is_late_with_one_thread() -> None:
    def measure() -> float:
        watch = ThreadWatch(single_thread=True)
        watch.stop_clock()
        thread = threading.Thread(target=_work, args=(2 * MIN_LATE_S,))
        thread.start()
        thread.join()
        return watch.end_turn(FIRST)

    # a thread of an earlier test that ends at the same time hides it, once
    assert any(measure() > MIN_LATE_S for _ in range(5))


def test_work_during_the_calls_is_not_late() -> None:
    watch = ThreadWatch(single_thread=True)
    thread = threading.Thread(target=_work, args=(0.01,))
    thread.start()
    thread.join()
    assert _take_turn(watch, FIRST) < MIN_LATE_S


def test_a_thread_of_another_case_that_ends_is_not_late_work_of_this_one() -> None:
    watch = ThreadWatch(single_thread=True)
    ending = threading.Event()
    thread = threading.Thread(target=lambda: [ending.wait(), _work(2 * MIN_LATE_S)])
    thread.start()
    _take_turn(watch, FIRST)
    watch.stop_clock()
    ending.set()
    thread.join()
    assert watch.end_turn(SECOND) == 0.0


def test_idle_threads_and_own_work_are_ignored() -> None:
    watch = ThreadWatch(single_thread=True)
    with _run_thread(lambda: time.sleep(0.005)):
        for _ in range(5):
            _take_turn(watch, FIRST)
            _work(0.01)
            assert _take_turn(watch, SECOND) < MIN_LATE_S
        assert watch.find_culprit() is None
        assert watch.observe_remaining(FIRST) is None


def test_remaining_threads_that_work_are_described() -> None:
    watch = ThreadWatch(single_thread=True)
    assert watch.observe_remaining(FIRST) is None
    with _run_thread(lambda: _work(0.001)):
        reason = watch.observe_remaining(SECOND)
    assert reason is not None
    assert reason.startswith("a thread that it started still worked after its calls had returned (")
