"""A budget that mechanisms are fitted to, so that they are compared at one size and not each at its favourite."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from ..errors import UsageError
from ..units import parse_size

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FRACTION = re.compile(r"N/([1-9]\d*)")


def is_byte_budget(text: str) -> bool:
    """Whether a budget is of a state's bytes, and not of keys a query."""
    return not (text.isdecimal() or FRACTION.fullmatch(text))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a mechanism may use at a place: so many keys a query, or a decode state as large as those and their values.

    keys: of each key-value head. length: of the sequence. head_dim: of keys and of values. causal: the direction.
    """

    keys: int
    length: int
    head_dim: int
    causal: bool

    @classmethod
    def parse(cls, text: str, *, length: int, kv_heads: int, head_dim: int, dtype: str, causal: bool) -> Self:
        """A number is one of keys, ``128``, and a part of the length too, ``N/16``; a size is a layer's state in bytes,
        ``192KiB``, all its heads together.

        Raises `UsageError` for none of them, and for a budget of no key.
        """
        if text.isdecimal():
            keys = int(text)
        elif fraction := FRACTION.fullmatch(text):
            keys = length // int(fraction[1])
        else:
            keys = parse_size(text) // (2 * kv_heads * head_dim * DTYPE_BYTES[dtype])
        if keys < 1:
            raise UsageError(f"it is less than one key and its value, of {kv_heads} heads of {head_dim}")
        return cls(keys=min(keys, length), length=length, head_dim=head_dim, causal=causal)

    def reach(self, keys: int | None = None) -> int:
        """How far a window of so many keys, all of them by default, reaches on each side: its own key is one of them.

        Raises `UsageError` for a window of no key.
        """
        keys = self.keys if keys is None else keys
        if keys < 1:
            raise UsageError(f"a budget of {self.keys} keys leaves none for the window")
        return keys - 1 if self.causal else (keys - 1) // 2

    def features(self, per_direction: int = 1) -> int:
        """How many directions of ``each`` features have sums as large as the keys and their values."""
        n_features = self.keys * 2 * self.head_dim // (per_direction * (self.head_dim + 1))
        if n_features < 1:
            raise UsageError(f"a budget of {self.keys} keys has no room for {per_direction} features")
        return n_features
