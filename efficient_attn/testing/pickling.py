"""Classes that are made on the way and still can be pickled, for as long as this process keeps them."""

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from ..contract.mechanism import Attention

_numbers = count()
_made: WeakValueDictionary[int, type[Attention]] = WeakValueDictionary()


def subclass(cls: type[Attention], methods: dict[str, Any]) -> type[Attention]:
    """A class of its own with these methods. Without this a check that pickles would see every planted bug."""
    number = next(_numbers)

    def reduce(self: Attention, protocol: Any) -> tuple[Any, ...]:
        return _revive, (number,), *object.__reduce_ex__(self, protocol)[2:]

    made = type(cls.__name__, (cls,), {"__reduce_ex__": reduce, **methods})
    _made[number] = made
    return made


def _revive(number: int) -> Attention:
    kind = _made[number]
    return kind.__new__(kind)
