"""Sizes: what is known of the tensors before a call, and the sizes of a call's tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple, NotRequired, Self, TypeAlias, TypedDict, TypeVar

import torch
from torch import Tensor

from ..errors import UsageError
from .traits import Input

T = TypeVar("T")
Inputs: TypeAlias = Mapping[str, Tensor]  # a mechanism's further tensors by name
Device: TypeAlias = torch.device | str
Values: TypeAlias = Tensor | None  # a Tensor ``[B, Hkv, M, E]``, or None for mechanisms that make their values from k
# Memory of a call beyond its output, in multiples of it; dense: also matrices N x M: scores, weights, gradients
WORKSPACE, TRAINING_WORKSPACE, SCORE_MATRICES, TRAINING_SCORE_MATRICES = 0.5, 8.0, 2, 4


@dataclass(frozen=True)
class Shape:
    """The sizes of one call: q ``[B, H, N, D]``, k ``[B, Hkv, M, D]``, v ``[B, Hkv, M, E]``."""

    batch: int
    heads: int
    kv_heads: int
    n: int
    m: int
    head_dim: int
    value_dim: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Values) -> Self:
        """The sizes of three tensors. Raises `UsageError` for the one that does not fit."""
        v = require_values(v)
        check_tensors(q=q, k=k, v=v)
        (batch, heads, n, width), (kb, kv_heads, m, kd), (*front, value_dim) = q.shape, k.shape, v.shape
        if kb != batch or kd != width or front != [batch, kv_heads, m]:
            raise UsageError(f"shapes do not fit: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}")
        if kv_heads == 0 or heads % kv_heads:
            raise UsageError(f"the {heads} heads of q are not a multiple of the {kv_heads} heads of k and v")
        return cls(batch, heads, kv_heads, n, m, width, value_dim)


@dataclass(frozen=True, kw_only=True)
class Dims:
    """The sizes of tensors that are known when a mechanism is created; None for unknown ones."""

    heads: int | None = None
    head_dim: int | None = None
    kv_heads: int | None = None
    value_dim: int | None = None
    max_len: int | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"Dims: {f.name} must be a whole number of at least 1, not {value!r}")
        if self.heads and self.kv_heads and self.heads % self.kv_heads:
            raise UsageError(f"Dims: kv_heads={self.kv_heads} does not divide heads={self.heads}")

    def cache_sizes(self, batch: int, kv_heads: int | None) -> tuple[int | None, int | None, int | None, int | None]:
        """``(batch, kv_heads, key width, value width)`` of a cache, as far as they are known."""
        return batch, kv_heads or self.heads, self.head_dim, self.value_dim or self.head_dim

    def check(self, shape: Shape, *, kv_heads: int | None, get_label: Callable[[], str]) -> None:
        """Raise `UsageError` for a call with other sizes. kv_heads: the number that the mechanism requires. get_label:
        returns its name, for messages."""
        for name, expected, actual in (
            ("heads", self.heads, shape.heads),
            ("kv_heads", kv_heads, shape.kv_heads),
            ("head_dim", self.head_dim, shape.head_dim),
            ("value_dim", self.value_dim, shape.value_dim),
        ):
            if expected is not None and expected != actual:
                raise UsageError(f"{get_label()} was created for {name}={expected}, got {actual}")


def require_values(v: Values) -> Tensor:
    """The values, which mechanisms with `Traits.values` require."""
    if v is None:
        raise UsageError("v is missing: this mechanism takes q, k and v")
    return v


def check_tensors(*, q: Tensor, **tensors: Tensor) -> None:
    """Raise `UsageError` for tensors that are not 4-dimensional, or that differ from q in dtype or device."""
    for name, x in {"q": q, **tensors}.items():
        if x.ndim != 4:
            raise UsageError(f"{name} must have 4 dimensions [batch, heads, length, width], got {list(x.shape)}")
        if x.dtype != q.dtype or not x.dtype.is_floating_point:
            raise UsageError(f"q, k and v must share one floating dtype, got q {q.dtype} and {name} {x.dtype}")
        if x.device != q.device:
            raise UsageError(f"q, k and v must be on one device, got q on {q.device} and {name} on {x.device}")


class CallFacts(TypedDict):
    """What a call is besides its shape. padded: whether the mask hides keys. stepwise: whether it is a `step`."""

    causal: bool
    dtype: torch.dtype
    device: torch.device
    gradient: bool
    padded: NotRequired[bool]
    stepwise: NotRequired[bool]


class Sample(NamedTuple):
    """Random inputs of a call; v is None if values are computed from k."""

    q: Tensor
    k: Tensor
    v: Values
    inputs: dict[str, Tensor]


def make_zero_queries(k: Tensor, dims: Dims, inputs: Mapping[str, Input]) -> tuple[Tensor, dict[str, Tensor]]:
    """Zero queries for keys ``[B, Hkv, T, D]``, and zero inputs that belong to queries, expanded from one number."""
    batch, kv_heads, length, width = k.shape
    heads, zero = dims.heads or kv_heads, k.new_zeros(())
    query_inputs = {
        name: zero.expand(batch, heads if i.per_head else 1, length, *i.tail)
        for name, i in inputs.items()
        if i.side == "query"
    }
    return zero.expand(batch, heads, length, dims.head_dim or width), query_inputs


def estimate_workspace_bytes(shape: Shape, itemsize: int, *, dense: bool, training: bool) -> int:
    """Estimated memory of a call beyond its inputs and its output, unless a mechanism knows better."""
    rows = shape.batch * shape.heads * shape.n * itemsize
    share, matrices = (TRAINING_WORKSPACE, TRAINING_SCORE_MATRICES) if training else (WORKSPACE, SCORE_MATRICES)
    return int(share * rows * shape.value_dim) + (matrices * rows * shape.m if dense else 0)


def draw_sample(
    shape: Shape, inputs: Mapping[str, Input], *, generator: torch.Generator, dtype: torch.dtype, device: Device
) -> Sample:
    """Unit Gaussians of a shape, with a mechanism's further inputs in their ranges; the same on every device."""

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device=device, dtype=dtype)

    s = shape
    q = draw(s.batch, s.heads, s.n, s.head_dim)
    k = draw(s.batch, s.kv_heads, s.m, s.head_dim)
    v = draw(s.batch, s.kv_heads, s.m, s.value_dim)
    further_inputs = {}
    for name, i in inputs.items():
        heads, length = (s.heads, s.n) if i.side == "query" else (s.kv_heads, s.m)
        further_inputs[name] = i.fit(draw(s.batch, heads if i.per_head else 1, length, *i.tail))
    return Sample(q, k, v, further_inputs)


def map_tensors(
    fn: Callable[[Tensor], T], q: Tensor, k: Tensor, v: Values, inputs: Inputs
) -> tuple[T, T, T | None, dict[str, T]]:
    """Apply fn to the tensors of a call, once to each, so that a tensor shared by two inputs stays shared."""
    unique = {id(x): x for x in (q, k, v, *inputs.values()) if x is not None}
    results = {i: fn(x) for i, x in unique.items()}
    named = {name: results[id(x)] for name, x in inputs.items()}
    return results[id(q)], results[id(k)], None if v is None else results[id(v)], named
