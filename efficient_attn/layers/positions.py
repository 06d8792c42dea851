"""Positions: encodings added to a model's input, or applied to queries and keys."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..contract import Attention, Mask
from ..errors import UnsupportedError, UsageError
from ..kernels.rotary import rotate
from ..shared_caches import shared_cache

How = Literal["add", "concat"]
BASE = 10_000.0


def frequencies(width: int, base: float = BASE, *, device: torch.device | str | None = None) -> Tensor:
    """base^(-2 i / width) for each pair i of ``width`` numbers: float64 ``[width / 2]``."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def sinusoidal(positions: Tensor, width: int, *, base: float = BASE) -> Tensor:
    """Sines and cosines of each position, in pairs with geometrically growing wavelengths (Vaswani et al. 2017,
    arXiv:1706.03762): ``[N]`` to float64 ``[N, width]``.

    The dot product of two depends only on their distance, and a shift is a rotation of each pair. Raises `UsageError`
    for an odd width.
    """
    if width < 2 or width % 2:
        raise UsageError(f"sinusoidal: a sine and a cosine need an even width, got {width}")
    angles = positions.double()[:, None] * frequencies(width, base, device=positions.device)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def binary(positions: Tensor, width: int) -> Tensor:
    """The bits of each position, the lowest first: ``[N]`` to float64 ``[N, width]``, of zeros and ones.

    Raises `UsageError` for positions that have more bits.
    """
    if positions.numel() and int(positions.max()) >= 2**width:
        raise UsageError(f"binary: position {int(positions.max())} has more than {width} bits")
    return (positions[:, None] >> torch.arange(width, device=positions.device) & 1).double()


class Encoding(nn.Module):
    """Base class of position encodings of x ``[B, N, d_model]``: added to it, or concatenated, which makes it wider.

    A subclass provides ``encode(positions [N]) -> [N, width]``. width: d_model if it is added.
    """

    def __init__(self, width: int, *, how: How = "add") -> None:
        super().__init__()
        if width < 1:
            raise UsageError(f"{type(self).__name__}: width must be at least 1, got {width}")
        self.width, self.how = width, how

    def encode(self, positions: Tensor) -> Tensor:
        raise UnsupportedError(f"{type(self).__name__} does not implement encode")

    def forward(self, x: Tensor, start: int = 0, starts: Tensor | None = None) -> Tensor:
        """x with the encodings of the positions from ``start`` on. starts: ``[B]``, the first position of each row;
        earlier ones are encoded as 0. Raises `UsageError` for another width."""
        if self.how == "add" and x.shape[-1] != self.width:
            raise UsageError(f"{type(self).__name__}: made for a width of {self.width}, x has {x.shape[-1]}")
        positions = torch.arange(start, start + x.shape[-2], device=x.device)
        if starts is None:
            encoding = self.encode(positions).to(x.dtype)
        else:
            row_positions = (positions - starts[:, None]).clamp(min=0)
            encoding = self.encode(row_positions.flatten()).to(x.dtype).unflatten(0, row_positions.shape)
        return x + encoding if self.how == "add" else torch.cat([x, encoding.expand(*x.shape[:-1], -1)], -1)

    def extra_repr(self) -> str:
        return f"{self.width}, how={self.how!r}"


class Sinusoidal(Encoding):
    """`sinusoidal` positions. base: about the longest wavelength, divided by 2 pi."""

    def __init__(self, width: int, *, how: How = "add", base: float = BASE) -> None:
        super().__init__(width, how=how)
        self.base = base
        sinusoidal(torch.arange(0), width)

    def encode(self, positions: Tensor) -> Tensor:
        return sinusoidal(positions, self.width, base=self.base)


class Binary(Encoding):
    """`binary` positions."""

    def encode(self, positions: Tensor) -> Tensor:
        return binary(positions, self.width)


class Learned(Encoding):
    """A vector for each position below ``max_len`` (Gehring et al. 2017, arXiv:1705.03122), drawn from ``seed``,
    N(0, 0.02^2). Later positions raise `UsageError`."""

    def __init__(self, width: int, *, max_len: int, how: How = "add", seed: int = 0) -> None:
        super().__init__(width, how=how)
        vectors = torch.randn(max_len, width, generator=torch.Generator().manual_seed(seed))
        self.table = nn.Parameter(vectors * 0.02)

    def encode(self, positions: Tensor) -> Tensor:
        if len(positions) and (last := int(positions.max())) >= len(self.table):
            raise UsageError(f"Learned: there are {len(self.table)} positions, got {last}")
        return self.table[positions]


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Base class of positions that a layer applies to queries and keys.

    extra: the number of added components. by_row: whether ``start`` may be ``[B]``, with a start for each row.
    """

    extra: ClassVar[int] = 0
    by_row: ClassVar[bool] = False

    def check(self, attn: Attention, heads: int, head_dim: int) -> None:
        """Raise `UnsupportedError` for a mechanism that does not support these positions."""
        if attn.key_dim is not None or not attn.traits.values:
            raise UnsupportedError(f"{attn.label} computes its own keys, so {type(self).__name__} cannot be applied")

    def check_mask(self, mask: Mask) -> None:
        """Raise `UnsupportedError` for a mask that these positions do not support."""

    def place_queries(self, q: Tensor, start: Any) -> Tensor:
        """Apply the positions from start on to ``q [B, H, N, D]``."""
        raise UnsupportedError(f"{type(self).__name__} does not implement the change of queries")

    def place_keys(self, k: Tensor, start: Any) -> Tensor:
        """Apply the positions from start on to ``k [B, Hkv, M, D]``."""
        raise UnsupportedError(f"{type(self).__name__} does not implement the change of keys")


@dataclass(frozen=True, kw_only=True)
class Rotary(Positions):
    """Rotary positions: each pair of components of a query or key is rotated by an angle that grows with its position,
    so that dot products depend on distances (RoPE, Su et al. 2021, arXiv:2104.09864).

    base: of the wavelengths. part: the share of a head's components that are rotated, the first ones. stretch: divides
    positions, so that a longer sequence has the angles of a shorter one (Chen et al. 2023, arXiv:2306.15595). pairs:
    ``halves``, component i with i + D/2, as in Llama; or ``adjacent``, as in the paper.
    """

    by_row: ClassVar[bool] = True
    base: float = BASE
    part: float = 1.0
    stretch: float = 1.0
    pairs: Literal["halves", "adjacent"] = "halves"

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1 or self.stretch <= 0 or self.base <= 1:
            raise UsageError(f"Rotary: part must be in (0, 1], stretch above 0 and base above 1, got {self}")

    def check(self, attn: Attention, heads: int, head_dim: int) -> None:
        super().check(attn, heads, head_dim)
        self._compute_turned_width(head_dim)

    def place_queries(self, q: Tensor, start: int | Tensor) -> Tensor:
        width = self._compute_turned_width(q.shape[-1])
        return rotate(q, *self._compute_turns(start, q, width), self.pairs == "adjacent")

    def place_keys(self, k: Tensor, start: int | Tensor) -> Tensor:
        return self.place_queries(k, start)

    def _compute_turns(self, start: int | Tensor, x: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Cosines, and sines with the sign of each component, ``[N, rotated]``, or for each row."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        if isinstance(start, Tensor) or type(x) is not Tensor or torch.compiler.is_compiling():
            return turns(count_from(start, x), width, self, dtype)
        return kept_turns(start, x.shape[-2], width, self, dtype, x.device)

    def _compute_turned_width(self, width: int) -> int:
        turned_width = round(width * self.part)
        if turned_width < 2 or turned_width % 2 or not math.isclose(turned_width, width * self.part):
            raise UsageError(f"Rotary: {self.part:g} of {width} components cannot be rotated in pairs; change part")
        return turned_width


def turns(at: Tensor, turned: int, rotary: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines ``[.., rotated]``, for a component and its partner in the pair."""
    angles = (at.double() / rotary.stretch)[..., None] * frequencies(turned, rotary.base, device=at.device)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    if rotary.pairs == "halves":
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
    return torch.stack([cos, cos], -1).flatten(-2), torch.stack([-sin, sin], -1).flatten(-2)


@shared_cache
@lru_cache(maxsize=4)  # the queries and keys of all layers of a model are at the same positions
def kept_turns(
    start: int, length: int, turned: int, rotary: Rotary, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """`turns` of the positions from start on, cached for the next call as tensors that any later mode may use."""
    with torch.inference_mode(False), torch.no_grad():
        return turns(torch.arange(start, start + length, device=device), turned, rotary, dtype)


@dataclass(frozen=True, kw_only=True)
class Alibi(Positions):
    """ALiBi: a multiple of the distance is subtracted from each score (Press et al. 2021, arXiv:2108.12409): of H
    heads, head h subtracts 2^(-8 (h + 1) / H) for each position; causal only.

    Softmax is invariant to a constant in all scores of a query, so adding the same multiple of the key's position is
    equivalent. That is a dot product with two more components of queries and keys, so that every mechanism that is a
    softmax of dot products keeps its fast implementation. A position's high and low bits are separate components, which
    half precision represents exactly.
    """

    extra: ClassVar[int] = 2
    by_row: ClassVar[bool] = True
    LOW: ClassVar[int] = 256  # integers that bfloat16 represents

    def check(self, attn: Attention, heads: int, head_dim: int) -> None:
        super().check(attn, heads, head_dim)
        if not attn.traits.exact:
            raise UnsupportedError(f"{attn.label} is not a softmax of dot products, so it does not support Alibi")

    def check_mask(self, mask: Mask) -> None:
        if not mask.causal:
            raise UnsupportedError("Alibi subtracts the distance to earlier positions, so it needs a causal mask")

    def place_queries(self, q: Tensor, start: int | Tensor) -> Tensor:
        width, total_width = q.shape[-1], q.shape[-1] + self.extra
        slopes = slopes_of(q.shape[1], device=q.device) * math.sqrt(total_width)
        slope_columns = torch.stack([slopes * self.LOW, slopes], -1).to(q.dtype)[:, None].expand(*q.shape[:-1], -1)
        # mechanisms divide by the root of the whole width
        return torch.cat([q * math.sqrt(total_width / width), slope_columns], -1)

    def place_keys(self, k: Tensor, start: int | Tensor) -> Tensor:
        positions = count_from(start, k)
        position_columns = torch.stack([positions // self.LOW, positions % self.LOW], -1).to(k.dtype)
        return torch.cat([k, position_columns.expand(*k.shape[:-1], -1)], -1)


def count_from(start: int | Tensor, x: Tensor) -> Tensor:
    """The positions of ``x [B, heads, N, D]`` from start on: ``[N]``, or ``[B, 1, N]`` with a start for each row."""
    steps = torch.arange(x.shape[-2], device=x.device)
    return steps + (start[:, None, None] if isinstance(start, Tensor) else start)


def slopes_of(heads: int, *, device: Any = None) -> Tensor:
    """ALiBi's slopes, float64 ``[H]``: for other numbers of heads than powers of two as in the paper's code, those of
    the next lower power, and then every other one of the next higher."""
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * (heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float64, device=device)
