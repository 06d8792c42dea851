"""Threads that a case has started: their processor time in the turns of other cases, and after its own calls."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

TASKS = Path("/proc/self/task")
MIN_FOREIGN_S = 0.005  # processor seconds in the turns of other cases that count, provided that they exceed
MIN_FOREIGN_SHARE = 0.02  # this share of the time, the difference below which speeds count as equal
MIN_LATE_S = 0.0005  # processor seconds after a call has returned that count
WAIT_S = 0.02  # during which threads that a prepared case leaves behind are observed


class ThreadWatch:
    """The threads of a process whose cases take turns, numbered. Only Linux lists them; elsewhere no time is reported.

    single_thread: whether one thread is requested. If so, all others count; otherwise those of Python, because torch's
    own threads work for all cases.
    """

    def __init__(self, *, single_thread: bool) -> None:
        self.single_thread = single_thread
        self._seconds = self._read()
        self._owners: dict[int, int | None] = dict.fromkeys(self._seconds)  # None: from before the first turn
        self._foreign: defaultdict[int | None, float] = defaultdict(float)
        self._start = time.perf_counter()
        self.stop_clock()

    def stop_clock(self) -> None:
        """The calls of a turn have returned; threads may not work for them any longer."""
        self._at_stop, self._others_at_stop = self._read(), _read_other_seconds()

    def end_turn(self, case: int) -> float:
        """End the turn of a case. Returns the processor seconds that its threads used since `stop_clock`."""
        others = _read_other_seconds()  # before its parts, so that a busy thread of another case adds nothing
        current = self._read()
        late_s = foreign_s = 0.0
        for thread, seconds in current.items():
            if (owner := self._owners.setdefault(thread, case)) == case:
                late_s += seconds - self._at_stop.get(thread, 0.0)
            else:
                self._foreign[owner] += seconds - self._seconds.get(thread, 0.0)
                foreign_s += seconds - self._at_stop.get(thread, 0.0)
        ended = self._owners.keys() - current.keys()
        if self.single_thread and all(self._owners[thread] == case for thread in ended):
            late_s = max(late_s, others - self._others_at_stop - foreign_s)  # also that of threads that have ended
        for thread in ended:
            del self._owners[thread]
        self._seconds = current
        return late_s

    def find_culprit(self) -> tuple[int | None, str] | None:
        """The case whose threads worked in the turns of others, with the reason; the case is None for threads from
        before the first turn."""
        elapsed_s = time.perf_counter() - self._start
        for owner, seconds in self._foreign.items():
            if seconds > max(MIN_FOREIGN_S, MIN_FOREIGN_SHARE * elapsed_s):
                thread = "a thread from before all cases" if owner is None else "a thread that it started"
                return owner, f"{thread} worked for {seconds * 1e3:.0f} ms while others were measured"
        return None

    def observe_remaining(self, case: int) -> str | None:
        """Why the threads that a case has started and left behind disturb others; None if they do not."""
        self.stop_clock()
        self.end_turn(case)
        if case not in self._owners.values():
            return None
        start = time.perf_counter()
        time.sleep(WAIT_S)
        processors = self.end_turn(case) / (time.perf_counter() - start)  # on a busy machine, a sleep lasts longer
        if processors <= MIN_FOREIGN_SHARE:
            return None
        return f"a thread that it started still worked after its calls had returned ({processors:.1f} processors)"

    def _read(self) -> dict[int, float]:
        """The processor seconds of every thread but this one, by its identifier in the system."""
        if not TASKS.is_dir():
            return {}
        main, seconds = threading.get_native_id(), {}
        counted = None if self.single_thread else {thread.native_id for thread in threading.enumerate()}
        for thread in map(int, os.listdir(TASKS)):
            if thread != main and (counted is None or thread in counted):
                with suppress(OSError):  # it has ended
                    seconds[thread] = time.clock_gettime((~thread << 3) | 6)  # the kernel's number of its clock
        return seconds


def _read_other_seconds() -> float:
    """The processor seconds of all other threads, those that have ended included."""
    return time.process_time() - time.thread_time()
