"""The traits that a mechanism declares, its further inputs, and the growth of its cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from torch import Tensor

from ..errors import UsageError

# traits that add a feature or a guarantee if they are true; the others are descriptions
PROMISES = ("causal", "strictly_causal", "bidirectional", "cross", "padding", "decode", "grouped", "gradient")
PROMISES += ("normalised", "deterministic", "linear_values")


class Input(NamedTuple):
    """A further tensor that a mechanism needs, ``[B, heads, N or M, *tail]``: a gate, a step size.

    squash: maps any numbers into the input's range; layers apply it to what they project, samplers to unit Gaussians.
    A function of a module, because traits are compared and copied. gradient: False for what only selects: outputs have
    no gradient by it, and layers keep its projection fixed (``requires_grad``) until it is trained with another loss.
    """

    side: Literal["query", "key"]
    per_head: bool = True
    tail: tuple[int, ...] = ()
    squash: Callable[[Tensor], Tensor] | None = None
    gradient: bool = True

    def fit(self, x: Tensor) -> Tensor:
        """x, or x in the input's range."""
        return x if self.squash is None else self.squash(x)


def _trait(default: bool, yes: str, no: str) -> Any:
    """A trait, with its meanings if it is true and if it is false."""
    return field(default=default, metadata={True: yes, False: no})


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What an instance supports and satisfies. The conformance tests verify all of it.

    causal, bidirectional: supports masks with and without ``causal``. strictly_causal: no part of the future affects
    the past, so that a prefix of the output is the output of the prefix. cross: N may differ from M. padding: supports
    ``key_lengths`` and ``key_mask``. decode: has ``init_state/step``. grouped: k and v may have fewer heads than q, and
    are never expanded. gradient: has a backward pass. exact: is a softmax of scaled dot products over the visible keys.
    normalised: weights of a row sum to 1. positional: positions matter beyond masks. mixes_queries: a row's output
    depends on other rows' queries. mixes_heads: a row's output depends on the queries of the other heads that share its
    key-value head. values: takes v; a mechanism that computes values from k takes None instead.
    linear_values: the output is linear in v.
    padded_as_trimmed: a padded row has the result of the shorter sequence; not if the number of keys M itself matters,
    as for blocks drawn from all of M. Strictly causal mechanisms satisfy it with causal masks in any case.
    deterministic: repeated calls give the same bits, gradients included. dropout: ``Attention.dropout`` can be set, and
    drops weights in training mode. state_tolerance: of a lossy decode state, such as an int8 cache: the largest error
    of a row of steps, relative to the row of the causal forward pass; 0 if rows are equal up to rounding. inputs:
    further tensors besides q, k and v, by keyword.
    """

    causal: bool = _trait(True, "takes causal masks", "no causal masks")
    strictly_causal: bool = _trait(
        True, "under a causal mask, no part of the future reaches the past", "no strict causality"
    )
    bidirectional: bool = _trait(True, "takes masks that are not causal", "no masks without causality")
    cross: bool = _trait(True, "takes N != M and query_start", "uses the keys as queries")
    padding: bool = _trait(True, "takes key_lengths and key_mask", "no padding")
    decode: bool = _trait(True, "decodes step by step", "no decoding")
    grouped: bool = _trait(True, "takes fewer key-value heads than heads, without copying them", "no grouped heads")
    gradient: bool = _trait(True, "has a backward pass", "no gradient")
    exact: bool = _trait(False, "is a softmax of scaled dot products over the keys that it sees", "no exact softmax")
    normalised: bool = _trait(True, "the weights of a row sum to 1", "no weights that sum to 1")
    positional: bool = _trait(False, "positions matter beyond masks", "positions matter only to masks")
    mixes_queries: bool = _trait(False, "a row depends on other rows' queries", "a row depends on its own query only")
    mixes_heads: bool = _trait(False, "heads of a group decide together", "a row depends on its own head's query only")
    values: bool = _trait(True, "takes values (v) of its own", "values are made from the keys")
    linear_values: bool = _trait(True, "the output is linear in the values", "the output is not linear in the values")
    padded_as_trimmed: bool = _trait(
        True, "a padded row has the result of the shorter sequence", "the number of keys counts, padded ones included"
    )
    deterministic: bool = _trait(True, "a repeated call gives the same bits", "no bits that repeat")
    dropout: bool = _trait(False, "drops weights in training if requested", "no dropout")
    state_tolerance: float = 0.0
    inputs: Mapping[str, Input] = field(default_factory=dict)

    def describe_lossy_state(self) -> str | None:
        """The declared error of a lossy decode state; None if rows of steps are equal up to rounding."""
        bound = f"its decode state is lossy: rows of steps have relative errors of up to {self.state_tolerance:g}"
        return bound if self.state_tolerance else None

    def __post_init__(self) -> None:
        if not 0 <= self.state_tolerance < 1:
            raise UsageError(f"Traits: state_tolerance is a relative error from 0 to 1, not {self.state_tolerance:g}")

    @property
    def directions(self) -> tuple[bool, ...]:
        """The supported values of causal."""
        return (False,) * self.bidirectional + (True,) * self.causal

    @property
    def rows_alone(self) -> bool:
        """Whether single query rows can be computed: their results do not depend on other queries."""
        return self.cross and not self.mixes_queries

    def meanings(self) -> dict[str, tuple[bool, str]]:
        """The value and meaning of each boolean trait."""
        flags = {f.name: (getattr(self, f.name), f.metadata) for f in fields(self) if f.metadata}
        return {name: (value, texts[value]) for name, (value, texts) in flags.items()}

    @property
    def unclaimed(self) -> tuple[str, ...]:
        """The traits that are not declared, as text, because undeclared traits are not checked."""
        meanings = self.meanings()
        return tuple(meanings[name][1] for name in PROMISES if not meanings[name][0])


@dataclass(frozen=True)
class Growth:
    """The published growth of time and memory, and the work.

    ``cost(N, M, causal)`` is the work of one head in query-key pairs: one pair is D + E multiply-adds. ``step(m)`` is
    that of a decode step with m positions in its state, if it is not the cost of one more position.
    """

    time: str
    memory: str
    cost: Callable[[int, int, bool], float]
    step: Callable[[int], float] | None = None

    def step_cost(self, m: int) -> float:
        """The work of one head in a decode step, the newest of m positions."""
        return self.step(m) if self.step else self.cost(m, m, True) - self.cost(m - 1, m - 1, True)
