"""Attribute side effects to the case that causes them: changed global state, replaced functions, background threads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from ...instruments import integrity
from ...instruments.global_state import GlobalState, GlobalStateChanged, watch_global_state
from ...instruments.thread_watch import MIN_LATE_S, ThreadWatch
from ...variants import CATALOGUE
from ..case import Case

BUILT_IN = frozenset(entry.name for entry in CATALOGUE)


def is_built_in(case: Case) -> bool:
    """Whether a case runs this package's code only, which replaces no functions: they are not compared after it."""
    return BUILT_IN.issuperset(case.variant.names)


def guard_creation(case: Case) -> AbstractContextManager[None]:
    """A context that creates the case's mechanism, which may draw random numbers, but change nothing else.

    Raises `GlobalStateChanged` for other changes, and undoes them, also after another error, and if the import of the
    case's plug-in replaced functions or changed settings.
    """
    for name in case.variant.names:
        if reason := integrity.blamed.get(name):
            raise GlobalStateChanged(reason)
    return watch_global_state(random=False, replacements=not is_built_in(case))


class TurnGuard:
    """Watches the cases of a job, which take turns and are named by their index."""

    def __init__(self, cases: Sequence[Case], *, single_thread: bool) -> None:
        self._built_in = {index for index, case in enumerate(cases) if is_built_in(case)}
        self.threads = ThreadWatch(single_thread=single_thread)
        self._before = GlobalState.capture()

    def start(self) -> None:
        """All cases have been created; from now on global state may not change."""
        self._before = GlobalState.capture()

    def after_sample(self, index: int) -> None:
        """Raise `GlobalStateChanged` if the case changed global state, or still works in the background."""
        late_s = self.threads.end_turn(index)
        if reason := self._before.describe_change(replacements=index not in self._built_in):
            self._before.restore()
            raise GlobalStateChanged(reason)
        if late_s > MIN_LATE_S:
            raise GlobalStateChanged(f"its threads worked for {late_s * 1e3:.1f} ms after its calls had returned")
