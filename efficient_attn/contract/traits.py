"""What a mechanism claims: its abilities, the inputs that it needs, and how its cost grows. All of it is tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

# traits that promise something when they are true; the others describe
PROMISES = ("causal", "strictly_causal", "bidirectional", "cross", "padding", "decode", "grouped", "gradient")
PROMISES += ("normalised", "deterministic")


class Input(NamedTuple):
    """One more tensor that a mechanism needs, ``[B, heads, N or M, *tail]``: a gate, a step size."""

    side: Literal["query", "key"]
    per_head: bool = True
    tail: tuple[int, ...] = ()


def _define_trait(default: bool, yes: str, no: str) -> Any:
    """A trait, and what it says in words: where it is claimed, and where it is not."""
    return field(default=default, metadata={True: yes, False: no})


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What an instance claims to be able to do. The conformance kit holds it to every word.

    causal, bidirectional: it takes masks with and without ``causal``.
    strictly_causal: no part of the future reaches the past, so a prefix of the output is the output of the prefix.
    cross: N may differ from M. padding: it takes ``key_lengths`` and ``key_mask``. decode: it has ``init_state/step``.
    grouped: k and v may have fewer heads than q, and are never expanded for it. gradient: it has a backward pass.
    exact: it is a softmax of scaled dot products over the keys that it sees. normalised: weights of a row sum to 1.
    positional: positions matter beyond masks. mixes_queries: a row's output depends on other rows' queries.
    values: it takes v; a mechanism that makes its values from k takes None instead.
    padded_as_trimmed: a padded row is the shorter sequence alone; not so where the number of keys M itself counts, as
    for blocks drawn from all of M. Strictly causal masks keep this promise in any case.
    deterministic: output and gradients are the same to the last bit when a call is repeated.
    dropout: ``Attention.dropout`` can be set, and drops weights in training mode.
    inputs: tensors needed besides q, k and v, by keyword.
    """

    causal: bool = _define_trait(True, "takes causal masks", "no causal masks")
    strictly_causal: bool = _define_trait(
        True, "under a causal mask, no part of the future reaches the past", "no strict causality"
    )
    bidirectional: bool = _define_trait(True, "takes masks that are not causal", "no masks without causality")
    cross: bool = _define_trait(True, "takes N != M and query_start", "no queries apart from the keys")
    padding: bool = _define_trait(True, "takes key_lengths and key_mask", "no padding")
    decode: bool = _define_trait(True, "decodes step by step", "no decoding")
    grouped: bool = _define_trait(True, "takes fewer key-value heads than heads, and copies none", "no grouped heads")
    gradient: bool = _define_trait(True, "has a backward pass", "no gradient")
    exact: bool = _define_trait(
        False, "is a softmax of scaled dot products over the keys that it sees", "no exact softmax"
    )
    normalised: bool = _define_trait(True, "the weights of a row sum to 1", "no weights that sum to 1")
    positional: bool = _define_trait(False, "positions matter beyond masks", "positions matter only to masks")
    mixes_queries: bool = _define_trait(
        False, "a row depends on other rows' queries", "a row depends on its own query alone"
    )
    values: bool = _define_trait(True, "takes v", "v is made from k")
    padded_as_trimmed: bool = _define_trait(
        True, "a padded row is the shorter sequence alone", "the number of keys counts, padded ones included"
    )
    deterministic: bool = _define_trait(True, "a repeated call gives the same bits", "no bits that repeat")
    dropout: bool = _define_trait(False, "drops weights in training when asked to", "no dropout")
    inputs: Mapping[str, Input] = field(default_factory=dict)

    @property
    def directions(self) -> tuple[bool, ...]:
        """Which of causal=False and causal=True it takes."""
        return (False,) * self.bidirectional + (True,) * self.causal

    @property
    def rows_alone(self) -> bool:
        """Whether some query rows can be asked for alone: they give what they give among all."""
        return self.cross and not self.mixes_queries

    def meanings(self) -> dict[str, tuple[bool, str]]:
        """Of each trait that is a yes or a no, which of the two, and what that means."""
        flags = {f.name: (getattr(self, f.name), f.metadata) for f in fields(self) if f.metadata}
        return {name: (value, texts[value]) for name, (value, texts) in flags.items()}

    @property
    def unclaimed(self) -> tuple[str, ...]:
        """What it does not promise, in words: of a mechanism that promises little, little is checked."""
        meanings = self.meanings()
        return tuple(meanings[name][1] for name in PROMISES if not meanings[name][0])


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
