"""What a mechanism claims: its abilities, the inputs that it needs, and how its cost grows. All of it is tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class Input(NamedTuple):
    """One more tensor that a mechanism needs, ``[B, heads, N or M, *tail]``: a gate, a step size."""

    side: Literal["query", "key"]
    per_head: bool = True
    tail: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What an instance claims to be able to do. The conformance kit holds it to every word.

    causal, bidirectional: it takes masks with and without ``causal``.
    strictly_causal: no part of the future reaches the past, so a prefix of the output is the output of the prefix.
    cross: N may differ from M. padding: it takes ``key_lengths`` and ``key_mask``. decode: it has ``init_state/step``.
    grouped: k and v may have fewer heads than q, and are never expanded for it. gradient: it has a backward pass.
    exact: it is a softmax over the keys that it sees. normalised: weights of a row sum to 1.
    positional: positions matter beyond masks. mixes_queries: a row's output depends on other rows' queries.
    values: it takes v; a mechanism that makes its values from k takes None instead.
    padded_as_trimmed: a padded row is the shorter sequence alone; not so where the number of keys M itself counts, as
    for blocks drawn from all of M. Strictly causal masks keep this promise in any case.
    inputs: tensors needed besides q, k and v, by keyword.
    dropout: ``Attention.dropout`` can be set, and drops weights in training mode.
    """

    causal: bool = True
    strictly_causal: bool = True
    bidirectional: bool = True
    cross: bool = True
    padding: bool = True
    decode: bool = True
    grouped: bool = True
    gradient: bool = True
    exact: bool = False
    normalised: bool = True
    positional: bool = False
    mixes_queries: bool = False
    values: bool = True
    padded_as_trimmed: bool = True
    inputs: Mapping[str, Input] = field(default_factory=dict)
    dropout: bool = False

    @property
    def directions(self) -> tuple[bool, ...]:
        """Which of causal=False and causal=True it takes."""
        return (False,) * self.bidirectional + (True,) * self.causal


@dataclass(frozen=True)
class Growth:
    """The published growth of time and memory, and the work that it does.

    ``cost(N, M, causal)`` is the work of one head in query-key pairs: one pair is D + E multiply-adds. ``step(m)`` is
    that of a decode step whose state holds m positions, where it is not what one position more adds to the whole.
    """

    time: str
    memory: str
    cost: Callable[[int, int, bool], float]
    step: Callable[[int], float] | None = None

    def step_cost(self, m: int) -> float:
        """The work of one head in a decode step, the newest of m positions: a recurrent state does not look back."""
        return self.step(m) if self.step else self.cost(m, m, True) - self.cost(m - 1, m - 1, True)
