"""Small mechanisms with unusual traits, declared correctly or incorrectly, for tests of the conformance tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Dims, Sample, Shape
from efficient_attn.contract.traits import Growth, Input, Traits
from efficient_attn.errors import UnsupportedError
from efficient_attn.kernels.dense import expand_heads, masked_softmax, widen

PLAIN = Traits(decode=False, grouped=False, exact=True)


class Toy(Attention):
    """Softmax attention, computed for 50 queries at a time. Subclasses change scores and traits."""

    backends = ("loop", "dense")
    claims = PLAIN

    @property
    def traits(self) -> Traits:
        return self.claims

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N^2)", lambda n, m, causal: n * m)

    def scores(self, q: Tensor, k: Tensor, first: int, **inputs: Tensor) -> Tensor:
        return q @ k.mT * q.shape[-1] ** -0.5

    def prepared(self, q: Tensor, mask: Mask) -> Tensor:
        return q

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return self._rows(self.prepared(q, mask), k, v, mask, 0, q.shape[2], **inputs)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        rows = self.prepared(q, mask)
        ends = range(0, q.shape[2], 50)
        return torch.cat([self._rows(rows, k, v, mask, i, min(i + 50, q.shape[2]), **inputs) for i in ends], 2)

    def _rows(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, first: int, last: int, **inputs: Tensor) -> Tensor:
        k, v = (widen(expand_heads(x, q.shape[1])) for x in (k, v))
        rows_mask = replace(mask, query_start=mask.start(q.shape[2], k.shape[2]) + first, query_lengths=None)
        allowed = rows_mask.dense(last - first, k.shape[2], device=q.device)
        weights = masked_softmax(self.scores(widen(q)[:, :, first:last], k, first, **inputs), allowed)
        return (weights @ v).to(q.dtype)


class Biased(Toy):
    """Has one more input, a bias of each key."""

    claims = replace(PLAIN, inputs={"bias": Input("key")}, exact=True)

    def scores(self, q: Tensor, k: Tensor, first: int, **inputs: Tensor) -> Tensor:
        bias = inputs["bias"]
        return super().scores(q, k, first) + expand_heads(widen(bias), q.shape[1])[:, :, None]


class Tied(Toy):
    """Requires k = q, as Reformer does."""

    claims = replace(PLAIN, cross=False)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        valid = mask.key_valid(k.shape[2])
        rows = q if valid is None else q.masked_fill(~valid[:, None, :, None], 0)
        query_valid = mask.query_valid(q.shape[2])
        keys = k if query_valid is None else k.masked_fill(~query_valid[:, None, :, None], 0)
        if not torch.equal(rows, keys):
            raise ea.UsageError("k must be q")
        return super().compute(q, k, v, mask)

    def sample(self, shape: Shape, **options: object) -> Sample:
        drawn = super().sample(shape, **options)  # pyright: ignore[reportArgumentType]
        return drawn._replace(k=drawn.q)


class Pooled(Toy):
    """Subtracts the mean of all valid queries from each query."""

    claims = replace(PLAIN, causal=False, strictly_causal=False, mixes_queries=True)

    def prepared(self, q: Tensor, mask: Mask) -> Tensor:
        query_valid = mask.query_valid(q.shape[2])
        count = q.shape[2] if query_valid is None else query_valid.sum(1).clamp(min=1).view(-1, 1, 1, 1)
        return q - q.sum(2, keepdim=True) / count


class Counting(Toy):
    """Without causality, weights depend on the number of keys including padding."""

    claims = replace(PLAIN, padded_as_trimmed=False)

    def _rows(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, first: int, last: int, **inputs: Tensor) -> Tensor:
        return super()._rows(q if mask.causal else q * (2 - 1 / k.shape[2]), k, v, mask, first, last, **inputs)


class Humble(Toy):
    """Supports no optional feature, and declares so."""

    claims = Traits(
        causal=False, strictly_causal=False, cross=False, padding=False, decode=False, grouped=False, gradient=False
    )


class CausalOnly(Toy):
    claims = replace(PLAIN, bidirectional=False)


class Learned(Toy):
    """Has a parameter for each head, initialized from the seed."""

    def __init__(self, *, dims: Dims = Dims(), seed: int = 0) -> None:
        super().__init__()
        if dims.heads is None:
            raise ea.UsageError("Learned needs dims.heads")
        drawn = torch.rand(dims.heads, generator=torch.Generator().manual_seed(seed))
        self.scale = nn.Parameter(drawn)

    def scores(self, q: Tensor, k: Tensor, first: int, **inputs: Tensor) -> Tensor:
        return widen(self.scale).view(-1, 1, 1) * super().scores(q, k, first)


def make(cls: type[Toy], **claims: object) -> type[Toy]:
    """The class with changed traits, correct or not."""
    return type(cls.__name__, (cls,), {"claims": replace(cls.claims, **claims)})


# -- toys that violate a declared trait -------------------------------------------------------------------------------


class Sequential(Toy):
    """Scores grow with the position of a key, as declared by `positional`."""

    claims = replace(PLAIN, positional=True, exact=False)

    def scores(self, q: Tensor, k: Tensor, first: int, **inputs: Tensor) -> Tensor:
        return super().scores(q, k, first) + 0.01 * torch.arange(k.shape[2]).to(q)


class CountingFuture(Toy):
    """With causal masks too, weights depend on the number of keys."""

    claims = replace(PLAIN, padded_as_trimmed=False)

    def _rows(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, first: int, last: int, **inputs: Tensor) -> Tensor:
        return super()._rows(q * (2 - 1 / k.shape[2]), k, v, mask, first, last, **inputs)


class Halved(Toy):
    claims = replace(PLAIN, normalised=False, exact=False)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return super().oracle(q, k, v, mask) / 2

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return super().compute(q, k, v, mask) / 2


class Forgetful(Learned):
    """Draws an offset that its state dict lacks."""

    def __init__(self, *, dims: Dims = Dims(), seed: int = 0) -> None:
        super().__init__(dims=dims, seed=seed)
        self.offset = torch.rand(dims.heads or 1, 1, 1, generator=torch.Generator().manual_seed(seed))

    def scores(self, q: Tensor, k: Tensor, first: int, **inputs: Tensor) -> Tensor:
        return super().scores(q, k, first) * (1 + self.offset.to(q))


class Shrinking(Toy):
    @property
    def growth(self) -> Growth:
        return Growth("O(1/N)", "O(1)", lambda n, m, causal: 1 / n)


class Miscounted(Toy):
    def pairs(self, n: int, m: int, causal: bool) -> int:
        return n * m


class Overflowing(Halved):
    """Softmax that overflows because it does not subtract the maximum."""

    def scores(self, q: Tensor, k: Tensor, first: int, **inputs: Tensor) -> Tensor:
        s = super().scores(q, k, first)
        return s + torch.exp(s.float()).to(s) * 0


# -- toys that cannot be checked completely ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Past:
    """Keys and values so far, allocated by the first step, so that their size is unknown before."""

    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0


class Stepwise(Toy):
    """Decodes one position at a time, with a state that does not declare its capacity."""

    claims = replace(PLAIN, decode=True)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> tuple[int, Past]:
        return max_len, Past()

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: tuple[int, Past], **inputs: Tensor) -> tuple[Tensor, Any]:
        max_len, past = state
        if q.shape[2] != 1:
            raise ea.UsageError("Stepwise: a step takes one position")
        end = past.length + 1
        if end > max_len:
            raise ea.UsageError(f"the decode state was made for max_len={max_len} positions")
        keys, values = (
            x.new_zeros(*x.shape[:2], max_len, x.shape[3]) if old is None else old
            for x, old in ((k, past.keys), (v, past.values))
        )
        keys[:, :, past.length : end], values[:, :, past.length : end] = k, v
        out = self._rows(q, keys[:, :, :end], values[:, :, :end], Mask(causal=True), 0, 1)
        return out, (max_len, Past(keys, values, end))


class Slow(Toy):
    """Has a slow reference implementation."""

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        time.sleep(3e-6 * q.shape[2] * k.shape[2])
        return super().oracle(q, k, v, mask, **inputs)


class Even(Toy):
    """Supports even widths only."""

    def __init__(self, *, dims: Dims = Dims()) -> None:
        super().__init__()
        if (dims.head_dim or 2) % 2:
            raise ea.UsageError(f"Even: head_dim must be even, not {dims.head_dim}")


class Noisy(Toy):
    """Its last bits differ between calls, as it declares."""

    claims = replace(PLAIN, deterministic=False)
    calls = 0

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        Noisy.calls += 1
        return super().compute(q, k, v, mask, **inputs) * (1 + Noisy.calls % 2 * 1e-14)


class Multiples(Toy):
    """Takes multiples of 16 positions only."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if q.shape[2] % 16 or k.shape[2] % 16:
            raise UnsupportedError(f"it takes multiples of 16 positions, not {q.shape[2]} over {k.shape[2]}")
        return super().compute(q, k, v, mask, **inputs)


class RefusesPadding(Toy):
    """Declares padding, and refuses it."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if mask.pads_keys:
            raise UnsupportedError("no padding")
        return super().compute(q, k, v, mask, **inputs)
