"""Classes that are created dynamically and can still be pickled within this process."""

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from ..contract.mechanism import Attention

_numbers = count()
_made: WeakValueDictionary[int, type[Attention]] = WeakValueDictionary()


def subclass(cls: type[Attention], methods: dict[str, Any]) -> type[Attention]:
    """A subclass with these methods. Without this, checks that pickle would detect every planted bug."""
    number = next(_numbers)

    def reduce(self: Attention, protocol: Any) -> tuple[Any, ...]:
        return _revive, (number,), *object.__reduce_ex__(self, protocol)[2:]

    made = type(cls.__name__, (cls,), {"__reduce_ex__": reduce, **methods})
    _made[number] = made
    return made


def _revive(number: int) -> Attention:
    kind = _made[number]
    return kind.__new__(kind)
