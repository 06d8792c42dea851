"""The units that are left, and the places that have one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ...engines.cluster import Slot
from .unit import Unit


class UnitQueue:
    """Units for several threads. A unit whose node is lost comes back."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._pending = list(units)
        self._active: set[Slot] = set()
        self._change = threading.Condition()
        self.closed = False

    def take(self, slot: Slot) -> Unit | None:
        """The next unit for a place; None if none is left, and none can come back from another place."""
        with self._change:
            while not self.closed:
                usable = (u for u in self._pending if u.device == slot.device and u.avoided != slot.node)
                if (unit := next(usable, None)) is not None:
                    self._pending.remove(unit)
                    self._active.add(slot)
                    return unit
                if not self._active:
                    break
                self._change.wait()
            return None

    def finish(self, slot: Slot, *further: Unit, first: bool = False) -> None:
        """A place has no unit any more. further: units that follow from its unit, to be measured before the others
        with ``first``."""
        with self._change:
            self._pending = [*further, *self._pending] if first else [*self._pending, *further]
            self._active.discard(slot)
            self._change.notify_all()

    def close(self) -> None:
        """Nothing is taken any more."""
        with self._change:
            self.closed = True
            self._change.notify_all()

    @property
    def pending(self) -> tuple[Unit, ...]:
        """The units that no place has."""
        with self._change:
            return tuple(self._pending)

    @property
    def has_planned(self) -> bool:
        """Whether a unit is left that no other node has measured."""
        return any(not unit.is_repeat for unit in self.pending)

    @property
    def is_done(self) -> bool:
        """Whether no unit is left, also none that a place has."""
        with self._change:
            return not self._pending and not self._active
