"""Budgets: mechanisms are compared with the same number of keys or the same size of decode state."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ..errors import UsageError
from ..units import parse_size

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FRACTION = re.compile(r"N/([1-9]\d*)")


def is_byte_budget(text: str) -> bool:
    """Whether a budget limits the bytes of a decode state, and not the keys of a query."""
    return not (text.isdecimal() or FRACTION.fullmatch(text))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A number of keys for each query, or a decode state as large as those keys and their values. keys: of each
    key-value head. length: of the sequence. head_dim: of keys and of values. causal: the direction. options: those that
    the spec names, in the types of the constructor."""

    keys: int
    length: int
    head_dim: int
    causal: bool
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def parse(cls, text: str, *, length: int, kv_heads: int, head_dim: int, dtype: str, causal: bool) -> Self:
        """Read a number of keys, ``128``, a share of the length, ``N/16``, or a layer's state in bytes over all heads,
        ``192KiB``. Raises `UsageError` for anything else, and for a budget of less than one key."""
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
        """How far a window of so many keys, by default all of them, extends on each side of its own key, which it
        includes. Raises `UsageError` for a window without a key."""
        keys = self.keys if keys is None else keys
        if keys < 1:
            raise UsageError(f"a budget of {self.keys} keys leaves none for the window")
        return keys - 1 if self.causal else (keys - 1) // 2

    def features(self, per_direction: int = 1) -> int:
        """The number of directions, with ``per_direction`` features each, with sums as large as keys and values."""
        n_features = self.keys * 2 * self.head_dim // (per_direction * (self.head_dim + 1))
        if n_features < 1:
            raise UsageError(f"a budget of {self.keys} keys is too small for {per_direction} features")
        return n_features
