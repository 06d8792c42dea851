"""The state of a causal scan: sums over all chunks so far, their weights, and what each chunk reads of it.

    S_c = sum_j e^(a_j - r_c) phi(k_j) v_j^T  [F, E],    z_c = sum_j e^(a_j - r_c) phi(k_j)  [F]

over all keys j before chunk c, where a_j is the logarithm of a key's weight and r_c the reference of the chunk: the
largest a so far, or with decays that of the newest position. Without weights all a and r are 0.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .sums import Sums, exponentiate, zero_if_infinite

NEG_INF = float("-inf")


class ChunkWeights(NamedTuple):
    """Weights within C chunks of c positions, relative to each row's reference, and between chunks, to each chunk's."""

    pairs: Tensor  # [Bh C, 1, 1, c, c], of a chunk's keys for its own queries, 0 for later keys
    past: Tensor  # [Bh C, 1, 1, c, 1], of what came before the chunk for its queries
    keys: Tensor  # [Bh C, 1, c, 1], of its keys in its own sums; these three [Bh, ...] if all chunks have the same
    sums: Tensor  # [Bh, C + 1, C], of each chunk's sums before each chunk, and after the last
    carry: Tensor  # [Bh, C + 1, 1], of the state before all of them there
    reference: Tensor  # [Bh], of the state after the last


class PastSums(NamedTuple):
    """Sums before each chunk, ``[Bh C, F, E]`` and ``[Bh C, F]``, and after the last, if known."""

    kv: Tensor
    z: Tensor | None  # where something divides by them
    end_sums: tuple[Tensor, Tensor] | None = None


class ScanState:
    """The sums over all chunks so far, or in the backward pass their gradients. decays, steady: see `LinearConfig`.
    divides: whether sums of weights are divisors; otherwise the sums of keys are not computed."""

    def __init__(self, sums: Sums, *, decays: bool, steady: bool, divides: bool = True) -> None:
        self.kv, self.z, self.reference = sums
        self.decays, self.steady, self.divides = decays, steady, divides
        self._steady_weights: dict[tuple[int, int], ChunkWeights] = {}

    def compute_weights(self, a: Tensor | None, count: int) -> ChunkWeights | None:
        """The weights in ``count`` chunks of equal length."""
        if a is None or self.reference is None:
            return None
        length = a.shape[1]
        if not self.steady or length == 1:  # one position does not show a rate
            return compute_chunk_weights(a, self.reference, self.decays, self.kv.dtype, count)
        if (weights := self._steady_weights.get((count, length))) is None:
            weights = compute_steady_weights(a, self.kv.dtype, count)
            self._steady_weights[count, length] = weights
        return weights._replace(reference=a[:, -1].double())

    def read(self, y: Tensor, v: Tensor, weights: ChunkWeights | None) -> PastSums:
        """The sums before each chunk of keys ``[Bh C, c, F]`` and values ``[Bh C, c, E]``."""
        heads, count = len(self.kv), len(y) // len(self.kv)
        if count == 1:
            return self._current_sums()
        # by default the chunks before each chunk, and before the end
        coefficients = y.new_ones(count + 1, count).tril_(-1).expand(heads, -1, -1) if weights is None else weights.sums

        def sum_before(chunk_sums: Tensor, state: Tensor) -> Tensor:
            past_sums, flat = coefficients @ chunk_sums.view(heads, count, -1), state.reshape(heads, 1, -1)
            return past_sums.add_(flat) if weights is None else past_sums.addcmul_(flat, weights.carry)

        kv = sum_before(y.mT @ weigh_sums(v, weights), self.kv)
        return self._split_sums(kv, sum_before(_sum_keys(y, weights), self.z) if self.divides else None)

    def advance(self, y: Tensor, v: Tensor, weights: ChunkWeights | None, past: PastSums) -> None:
        """Add the chunks to the state."""
        if weights is not None:
            self.reference = weights.reference
        if past.end_sums is not None:
            self.kv, self.z = past.end_sums
            return
        if weights is not None:
            self._apply_carry(weights)
        self.kv.baddbmm_(y.mT, weigh_sums(v, weights))
        if self.divides:
            self.z += _sum_keys(y, weights)

    def read_backward(
        self, x: Tensor, grad_tops: Tensor, grad_totals: Tensor | None, weights: ChunkWeights | None
    ) -> PastSums:
        """The transpose of `read`: gradients of each chunk's sums, from rows ``[Bh C, G c, F]`` and their gradients."""
        heads, count = len(self.kv), len(x) // len(self.kv)
        if count == 1:
            return self._current_sums()
        if weights is None:
            coefficients = torch.cat([x.new_ones(count + 1, count).tril_(-1), x.new_ones(count + 1, 1)], 1)
            coefficients = coefficients.expand(heads, -1, -1)
        else:
            coefficients = torch.cat([weights.sums, weights.carry], 2)

        def sum_after(chunk_grads: Tensor, state: Tensor) -> Tensor:
            return coefficients.mT @ torch.cat([chunk_grads.view(heads, count, -1), state.reshape(heads, 1, -1)], 1)

        kv = sum_after(x.mT @ weigh_past(grad_tops, weights), self.kv)
        if not self.divides:
            return self._split_sums(kv, None)
        if grad_totals is None:
            grad_z = self.z.new_zeros(len(x), self.z.shape[1])
        else:
            grad_z = _key_sum_gradient(x, grad_totals, weights)
        return self._split_sums(kv, sum_after(grad_z, self.z))

    def advance_backward(
        self, x: Tensor, grad_tops: Tensor, grad_totals: Tensor | None, weights: ChunkWeights | None, past: PastSums
    ) -> None:
        """From the gradient by the state after chunks to that by the state before them."""
        if past.end_sums is not None:
            self.kv, self.z = past.end_sums
            return
        if weights is not None:
            self._apply_carry(weights)
        self.kv.baddbmm_(x.mT, weigh_past(grad_tops, weights))
        if grad_totals is not None:
            self.z += _key_sum_gradient(x, grad_totals, weights)

    def _apply_carry(self, weights: ChunkWeights) -> None:
        self.kv.mul_(weights.carry[:, -1:])
        self.z.mul_(weights.carry[:, -1])

    def _current_sums(self) -> PastSums:
        return PastSums(self.kv, self.z if self.divides else None)

    def _split_sums(self, kv: Tensor, z: Tensor | None) -> PastSums:
        """Split sums ``[Bh, C + 1, .]`` into those of chunks, and a copy of the last, which keeps no others alive."""
        past_kv, end_kv = kv[:, :-1].reshape(-1, *self.kv.shape[1:]), kv[:, -1].clone().view(self.kv.shape)
        if z is None:
            return PastSums(past_kv, None, (end_kv, self.z))
        return PastSums(past_kv, z[:, :-1].flatten(0, 1), (end_kv, z[:, -1].clone()))


def _key_sum_gradient(x: Tensor, grad_totals: Tensor, weights: ChunkWeights | None) -> Tensor:
    return (weigh_past(grad_totals, weights).mT @ x)[:, 0]


def _sum_keys(y: Tensor, weights: ChunkWeights | None) -> Tensor:
    """Each chunk's own sums of keys ``[Bh C, F]``."""
    if weights is None:
        return y.sum(1)
    return (weights.keys.mT @ y.reshape(len(weights.keys), -1, *y.shape[1:])).flatten(0, 2)


def compute_chunk_weights(a: Tensor, reference: Tensor, decays: bool, dtype: torch.dtype, count: int) -> ChunkWeights:
    """Weights from logarithms ``[Bh, L]``. Differences are computed in float64, relative to each chunk's reference."""
    a = a.double()
    rows = a if decays else torch.maximum(a.cummax(1)[0], reference[:, None])
    a, rows = a.unflatten(1, (count, -1)), rows.unflatten(1, (count, -1))
    last = rows[..., -1]
    starts = torch.cat([reference[:, None], last], 1)  # before each chunk, and after the last
    base = zero_if_infinite(starts)
    near, level = ((x - base[:, :-1, None]).to(dtype).flatten(0, 1) for x in (a, rows))
    begin = (starts - base)[:, :-1].to(dtype).flatten()[:, None]
    level, top = zero_if_infinite(level), zero_if_infinite(level[:, -1:])
    size = a.shape[2]
    later = torch.ones(size, size, dtype=torch.bool, device=a.device).triu_(1)
    pairs = exponentiate((near[:, None] - level[:, :, None]).masked_fill_(later, NEG_INF))
    before = torch.ones(count + 1, count, dtype=torch.bool, device=a.device).tril_(-1)
    return ChunkWeights(
        pairs[:, None, None],
        exponentiate(begin - level)[:, None, None, :, None],
        exponentiate(near - top)[:, None, :, None],
        (last[:, None] - base[..., None]).masked_fill_(~before, NEG_INF).exp_().to(dtype),
        (reference[:, None] - base).exp_().to(dtype)[..., None],
        starts[:, -1].clone(),
    )


def compute_steady_weights(a: Tensor, dtype: torch.dtype, count: int) -> ChunkWeights:
    """As `compute_chunk_weights`, if logarithms rise by as much at each position, so that chunks have equal weights."""
    size = a.shape[1] // count
    rate = (a[:, -1:] - a[:, :1]).double() / (a.shape[1] - 1)
    position, chunk = (torch.arange(x, dtype=torch.float64, device=a.device) for x in (size, count + 1))

    def fade(distance: Tensor) -> Tensor:
        logs = rate.view(-1, *(1 for _ in distance.shape)) * -distance
        return exponentiate(logs.masked_fill_(distance < 0, NEG_INF).to(dtype))

    return ChunkWeights(
        fade(position[:, None] - position)[:, None, None],
        fade(position + 1)[:, None, None, :, None],
        fade(size - 1 - position)[:, None, :, None],
        fade(size * (chunk[:, None] - 1 - chunk[:-1])),
        fade(size * chunk)[..., None],
        a[:, -1].double(),
    )


def weigh_past(x: Tensor, weights: ChunkWeights | None) -> Tensor:
    """Rows ``[Bh C, G c, .]`` of chunks, multiplied by their weights of the past."""
    if weights is None:
        return x
    size, width = weights.past.shape[3], x.shape[2]
    return (x.reshape(len(weights.past), -1, x.shape[1] // size, size, width) * weights.past).reshape(x.shape)


def weigh_sums(x: Tensor, weights: ChunkWeights | None) -> Tensor:
    """Rows ``[Bh C, c, .]`` of keys or values, usually the narrower, by the keys' weights in their chunk's sums."""
    if weights is None:
        return x
    return (x.reshape(len(weights.keys), -1, *x.shape[1:]) * weights.keys).reshape(x.shape)
