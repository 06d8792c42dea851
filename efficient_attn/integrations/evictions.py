"""Caches of exact attention that keep a bounded number of keys, by the weights that these received.

A pass attends exactly to the keys that are kept and, causally, to its own; then the cache is reduced. So the result
depends on how a sequence is divided into passes: usually a prompt, then single tokens.

    StateCache(model, keep=H2O(keys=64, recent=64))
    StateCache(model, keep=fit(SnapKV, "192KiB", model))  # of a layer's keys and values
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contract.budget import Budget
from ..contract.mask import CAUSAL
from ..contract.mechanism import Attention
from ..errors import UnsupportedError, UsageError, check_at_least_one
from ..kernels.dense import masked_softmax, widen
from ..kernels.selected_keys import cut_rows, take_keys
from ..variants.full.softmax_attention import SoftmaxAttention

MOST_WINDOW = 32  # of the last queries whose weights a fitted SnapKV reads


@dataclass(frozen=True)
class KeptKeys:
    """The keys that a layer keeps, in the order of positions: ``keys [B, Hkv, kept, D]``, ``values [.., E]``, and for
    each its ``scores`` and ``positions [B, Hkv, kept]``. passes: so far. length: positions so far."""

    keys: Tensor
    values: Tensor
    scores: Tensor
    positions: Tensor
    passes: int = 0
    length: int = 0

    def append(self, k: Tensor, v: Tensor) -> KeptKeys:
        """With new keys, whose scores are 0."""
        new = torch.arange(self.length, self.length + k.shape[2], device=k.device).expand(k.shape[:3])
        return KeptKeys(
            torch.cat([self.keys, k], 2),
            torch.cat([self.values, v], 2),
            torch.cat([self.scores, self.scores.new_zeros(k.shape[:3])], 2),
            torch.cat([self.positions, new], 2),
            self.passes + 1,
            self.length + k.shape[2],
        )

    def select(self, index: Tensor) -> KeptKeys:
        """With the keys at these places, ``[B, Hkv, count]`` in increasing order."""
        keys, values = (take_keys(x, index) for x in (self.keys, self.values))
        scores, positions = (x.gather(2, index) for x in (self.scores, self.positions))
        return replace(self, keys=keys, values=values, scores=scores, positions=positions)


class Eviction(Protocol):
    """A rule that reduces a cache after a pass."""

    def reduce(self, cache: KeptKeys, q: Tensor) -> KeptKeys:
        """The keys that remain. cache: all, with those of the pass. q ``[B, H, N, D]``: the pass's queries; the last is
        aligned with the last key."""
        ...


@dataclass(frozen=True, kw_only=True)
class H2O:
    """The keys with the largest sums of weights over all queries so far, and the last ones (Zhang et al. 2023,
    arXiv:2306.14048). keys: the number of the former, for each key-value head. recent: of the latter."""

    keys: int = 64
    recent: int = 64

    def __post_init__(self) -> None:
        check_at_least_one("H2O", keys=self.keys, recent=self.recent)

    @classmethod
    def of_size(cls, count: int) -> Self:
        """The rule that keeps ``count`` keys, half of them the last ones."""
        return cls(keys=count - count // 2, recent=count // 2)

    def reduce(self, cache: KeptKeys, q: Tensor) -> KeptKeys:
        """Keep the heaviest and the last keys."""
        cache = replace(cache, scores=cache.scores + sum_weights(q, cache.keys))
        return _keep_best(cache, cache.scores, self.keys, self.recent)


@dataclass(frozen=True, kw_only=True)
class Tova:
    """The keys with the largest weights of the last query, averaged over all heads (Oren et al. 2024,
    arXiv:2401.06104). keys: their number, among which the last query's own counts."""

    keys: int = 128

    def __post_init__(self) -> None:
        check_at_least_one("Tova", keys=self.keys)

    @classmethod
    def of_size(cls, count: int) -> Self:
        """The rule that keeps ``count`` keys."""
        return cls(keys=count)

    def reduce(self, cache: KeptKeys, q: Tensor) -> KeptKeys:
        """Keep the keys that the last query weighs most."""
        scores = sum_weights(q[:, :, -1:], cache.keys).sum(1, keepdim=True).expand(cache.scores.shape) / q.shape[1]
        return _keep_best(replace(cache, scores=scores), scores, self.keys, 0)


@dataclass(frozen=True, kw_only=True)
class SnapKV:
    """After the first pass, the prompt, the keys with the largest weights of its last queries, pooled over neighbours;
    later keys are all kept (Li et al. 2024, arXiv:2404.14469). keys: the number that remains of the prompt, for each
    key-value head, the window included. window: the last queries, whose keys remain. pool: keys over which weights are
    averaged, an odd number."""

    keys: int = 128
    window: int = 32
    pool: int = 7

    def __post_init__(self) -> None:
        check_at_least_one("SnapKV", window=self.window, pool=self.pool)
        if self.keys <= self.window:
            raise UsageError(f"SnapKV: keys={self.keys} must be more than the window={self.window}, which remains")
        if self.pool % 2 == 0:
            raise UsageError(f"SnapKV: pool must be odd, got {self.pool}")

    @classmethod
    def of_size(cls, count: int) -> Self:
        """The rule that keeps ``count`` keys of a prompt, a quarter of them and at most 32 the last ones."""
        return cls(keys=count, window=min(max(count // 4, 1), MOST_WINDOW))

    def reduce(self, cache: KeptKeys, q: Tensor) -> KeptKeys:
        """Keep the keys of the prompt that its last queries weigh most."""
        if cache.passes > 1 or cache.keys.shape[2] <= self.keys:
            return cache
        weights = sum_weights(q[:, :, -self.window :], cache.keys)
        earlier = weights[:, :, : -self.window]  # the window's keys remain, and are not pooled
        pooled = F.avg_pool1d(earlier, self.pool, stride=1, padding=self.pool // 2)
        scores = F.pad(pooled, (0, weights.shape[2] - earlier.shape[2]))
        return _keep_best(replace(cache, scores=scores), scores, self.keys - self.window, self.window)


FittedRule = TypeVar("FittedRule", H2O, Tova, SnapKV)


def fit(rule: type[FittedRule], budget: str, model: Any) -> FittedRule:
    """The rule that keeps a budget in each layer of a model: a number of keys for each key-value head, ``128``, or the
    bytes of a layer's keys and values in one sequence, ``192KiB``. Raises `UsageError` for a budget that is too small.
    """
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    sizes = {"kv_heads": getattr(config, "num_key_value_heads", None) or heads, "head_dim": width}
    dtype = str(model.dtype).removeprefix("torch.")
    try:
        keys = Budget.parse(budget, length=config.max_position_embeddings, **sizes, dtype=dtype, causal=True).keys
        return rule.of_size(keys)
    except UsageError as error:
        raise UsageError(f"{rule.__name__}: budget {budget}: {error}") from error


def compute_kept_shares(states: Sequence[Any]) -> Tensor:
    """Which positions the states of a `StateCache` still hold: ``[layers, positions]``, the share of key-value heads,
    over all sequences, that keep each. Raises `UsageError` for states of other mechanisms, and for empty ones."""
    if not states or not all(isinstance(state, KeptKeys) for state in states):
        raise UsageError("compute_kept_shares needs the states of a StateCache(model, keep=...) that has read a prompt")
    shares = []
    for state in states:
        flat = state.positions.flatten(0, 1)  # of each head of each sequence
        counts = torch.zeros(len(flat), state.length, device=flat.device)
        shares.append(counts.scatter(1, flat, 1.0).mean(0))
    return torch.stack(shares)


def _keep_best(cache: KeptKeys, scores: Tensor, count: int, recent: int) -> KeptKeys:
    """The last keys, and of the earlier ones those with the largest scores, of equal ones the first."""
    size = scores.shape[2]
    if size <= count + recent:
        return cache
    earlier = scores[:, :, : size - recent].sort(dim=-1, descending=True, stable=True).indices[..., :count]
    last = torch.arange(size - recent, size, device=scores.device).expand(*scores.shape[:2], -1)
    return cache.select(torch.cat([earlier.sort(dim=-1).values, last], -1))


def sum_weights(q: Tensor, k: Tensor) -> Tensor:
    """``[B, Hkv, M]``, the sum of the softmax weights of each key over queries and over the heads of its group. The
    last of the queries ``[B, H, N, D]`` is aligned with the last key ``[B, Hkv, M, D]``."""
    (batch, _, n, width), (kv_heads, m) = q.shape, k.shape[1:3]
    keys, total = widen(k), widen(k[..., 0]).new_zeros(batch, kv_heads, m)
    for rows in cut_rows(n, k, q.shape[1] // kv_heads):
        count = rows.stop - rows.start
        queries = widen(q[:, :, rows]).reshape(batch, kv_heads, -1, width)
        scores = (queries @ keys.mT * width**-0.5).unflatten(2, (-1, count))
        visible = CAUSAL.rows(rows, n, m).dense(count, m, device=q.device)[:, :, None]
        total += masked_softmax(scores, visible).sum((2, 3))
    return total


def attend_and_reduce(
    attn: Attention, rule: Eviction, cache: KeptKeys | None, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, KeptKeys]:
    """The outputs of a pass, and the keys that remain after it. Raises `UnsupportedError` for other mechanisms than
    exact attention."""
    if type(attn).compute is not SoftmaxAttention.compute:
        raise UnsupportedError(f"{attn.label}: only exact attention (full, gqa, mqa) drops keys by their weights")
    if cache is None:
        scores = widen(k[:, :, :0, 0])
        cache = KeptKeys(k[:, :, :0], v[:, :, :0], scores, torch.zeros_like(scores, dtype=torch.int64))
    cache = cache.append(k, v)
    out = attn(q, cache.keys, cache.values, CAUSAL)
    return out, rule.reduce(cache, q.detach())
