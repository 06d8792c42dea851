"""The state of a causal scan: sums over all chunks so far, their weights, and what each chunk reads of it.

    S_c = sum_j e^(a_j - r_c) phi(k_j) v_j^T  [F, E],    z_c = sum_j e^(a_j - r_c) phi(k_j)  [F]

over all keys j before chunk c, where a_j is the logarithm of a key's weight and r_c the reference of the chunk: the
largest a so far, or with decays that of the newest position. Without weights all a and r are 0.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..mask_cache import MASK_CACHE
from .sums import Sums, exponentiate, zero_if_infinite

NEG_INF = float("-inf")


class ChunkWeights(NamedTuple):
    """Weights within C chunks of c positions, relative to each row's reference, and between chunks, to each chunk's."""

    pairs: Tensor  # [Bh C, 1, 1, c, c], of a chunk's keys for its own queries, 0 for later keys
    past: Tensor  # [Bh C, 1, 1, c, 1], of what came before the chunk for its queries
    keys: Tensor  # [Bh C, 1, c, 1], of its keys in its own sums; these three [Bh, ...] if all chunks have the same
    sums: Tensor  # [Bh, C + 1, C], of each chunk's sums before each chunk, and after the last
    carry: Tensor  # [Bh, C + 1, 1], of the state before all of them there
    reference: Tensor | None  # [Bh], of the state after the last


Columns = list[Tensor]  # of sums: [Bh, F, E], and where something divides those of weights, [Bh, F, 1], or both in one
Values = tuple[Tensor | None, ...]  # [Bh C, c, E] for each of these; None for the ones whose sums are those of weights


def joins_ones(x: Tensor) -> bool:
    """Whether values have a further column of ones, so that the same products give the sums of weights: on a GPU, where
    each costs a launch. On a CPU one more column takes as long as sixteen more."""
    return x.device.type != "cpu"


class ScanState:
    """The sums over all chunks so far, or in the backward pass their gradients, as `Columns`; None is zero. decays,
    steady, rates: see `LinearConfig`. divides: whether sums of weights are divisors; otherwise they are not computed.
    """

    def __init__(
        self,
        past: Sums | None,
        *,
        decays: bool,
        steady: bool,
        divides: bool = True,
        rates: tuple[float, ...] = (),
    ) -> None:
        self.decays, self.steady, self.divides, self.rates = decays, steady, divides, rates
        self.columns: Columns | None = None
        self._z, self.reference = None, None if past is None else past.reference
        self._steady_weights: dict[tuple[int, int], ChunkWeights] = {}
        if past is not None:
            self.replace(past.kv, past.z)

    def replace(self, kv: Tensor, z: Tensor) -> None:
        """Set the sums to copies of these, as `split` returns them."""
        if not self.divides:
            self.columns, self._z = [kv.clone()], z
        else:
            self.columns = [torch.cat([kv, z[..., None]], 2)] if joins_ones(kv) else [kv.clone(), z[..., None].clone()]

    def split(self) -> tuple[Tensor, Tensor]:
        """The sums of products ``[Bh, F, E]`` and those of keys ``[Bh, F]``."""
        assert self.columns is not None
        kv, z = self.columns[0], self._z
        if self.divides and joins_ones(kv):
            return kv[..., :-1].contiguous(), kv[..., -1].contiguous()
        if self.divides:
            return kv, self.columns[1][..., 0]
        return kv, kv.new_zeros(kv.shape[:2]) if z is None else z.clone()

    def compute_weights(self, a: Tensor | None, y: Tensor, count: int) -> ChunkWeights | None:
        """The weights in ``count`` chunks ``y [Bh C, c, F]`` of equal length, from logarithms ``a [Bh, C c]``."""
        if self.rates:
            weights = find_steady_weights(self.rates, len(y) // count, y.shape[1], count, y.dtype, y.device)
            return weights._replace(reference=None if a is None else a[:, -1].double())
        if a is None:
            return None
        if self.reference is None:
            self.reference = a.new_full((len(a),), NEG_INF, dtype=torch.float64)
        length = a.shape[1]
        if not self.steady or length == 1:  # one position does not show a rate
            return compute_chunk_weights(a, self.reference, self.decays, y.dtype, count)
        if (weights := self._steady_weights.get((count, length))) is None:
            rate = (a[:, -1:] - a[:, :1]).double() / (length - 1)
            weights = compute_steady_weights(rate, length // count, count, y.dtype)
            self._steady_weights[count, length] = weights
        return weights._replace(reference=a[:, -1].double())

    def read(
        self, y: Tensor, values: Values, count: int, weights: ChunkWeights | None
    ) -> tuple[Columns | None, Columns | None]:
        """The sums before each of C chunks of keys ``[Bh C, c, F]`` and values, and those of each chunk ``[Bh, C, F
        E]``, for `advance`. A single chunk reads the state, and has none."""
        if count == 1:
            return self.columns, None
        chunk_sums = [_sum_values(y, v, weights).reshape(-1, count, y.shape[2] * _count_columns(v)) for v in values]
        coefficients = self._coefficients(chunk_sums[0], weights)[:, :count]
        before = [coefficients @ x for x in chunk_sums]
        self._add_columns(before, None if weights is None else weights.carry[:, :count])
        return [x.view(len(y), y.shape[2], -1) for x in before], chunk_sums

    def advance(self, y: Tensor, values: Values, weights: ChunkWeights | None, chunk_sums: Columns | None) -> None:
        """Add the chunks to the state, in place if there is one."""
        if weights is not None:
            self.reference = weights.reference
        if chunk_sums is not None:
            self._add_chunks(chunk_sums, y.shape[2], weights, None if weights is None else weights.sums[:, -1:])
            return
        past = self._decay(weights)
        columns = zip(values, past or [None] * len(values), strict=True)
        self.columns = [_sum_values(y, v, weights, total) for v, total in columns]

    def read_backward(
        self, x: Tensor, tops: Columns, count: int, weights: ChunkWeights | None
    ) -> tuple[Columns | None, Columns | None]:
        """The transpose of `read`: gradients of each chunk's sums, from rows ``[Bh C, G c, F]`` and their gradients."""
        if count == 1:
            return self.columns, None
        chunk_grads = [_sum_rows(x, top, weights).reshape(-1, count, x.shape[2] * top.shape[2]) for top in tops]
        coefficients = self._coefficients(chunk_grads[0], weights).mT
        after = [coefficients[..., :count] @ grads for grads in chunk_grads]
        self._add_columns(after, None if weights is None else coefficients[..., count:])
        return [grads.view(len(x), x.shape[2], -1) for grads in after], chunk_grads

    def advance_backward(
        self, x: Tensor, tops: Columns, weights: ChunkWeights | None, chunk_grads: Columns | None
    ) -> None:
        """From the gradient by the state after chunks to that by the state before them."""
        if chunk_grads is not None:
            self._add_chunks(chunk_grads, x.shape[2], weights, None if weights is None else weights.carry[:, :-1].mT)
            return
        past = self._decay(weights)
        self.columns = [
            _sum_rows(x, top, weights, total) for top, total in zip(tops, past or [None] * len(tops), strict=True)
        ]

    def _decay(self, weights: ChunkWeights | None) -> Columns | None:
        if self.columns is None or weights is None:
            return self.columns
        return [x.mul_(weights.carry[:, -1:]) for x in self.columns]

    def _add_chunks(
        self, chunk_sums: Columns, features: int, weights: ChunkWeights | None, factors: Tensor | None
    ) -> None:
        """Add the sums of several chunks, by factors ``[Bh, 1, C]``, to the decayed state."""
        totals = [x.sum(1, keepdim=True) if factors is None else factors @ x for x in chunk_sums]
        self._add_columns(totals, None if weights is None else weights.carry[:, -1:])
        self.columns = [total.view(len(total), features, -1) for total in totals]

    def _add_columns(self, sums: Columns, carry: Tensor | None) -> None:
        """Add the state, weighted by ``[Bh, C, 1]``, to sums ``[Bh, C, F E]``, in place."""
        for total, state in zip(sums, self.columns or [], strict=bool(self.columns)):
            flat = state.reshape(len(state), 1, -1)
            total.add_(flat) if carry is None else total.addcmul_(flat, carry)

    @staticmethod
    def _coefficients(chunk_sums: Tensor, weights: ChunkWeights | None) -> Tensor:
        """The weights ``[Bh, C + 1, C]`` of chunks before each chunk and after the last: 1 by default."""
        heads, count, _ = chunk_sums.shape
        if weights is not None:
            return weights.sums
        return find_triangle(count + 1, count, chunk_sums.dtype, chunk_sums.device).expand(heads, -1, -1)


def _count_columns(v: Tensor | None) -> int:
    return 1 if v is None else v.shape[2]


def _sum_values(y: Tensor, v: Tensor | None, weights: ChunkWeights | None, total: Tensor | None = None) -> Tensor:
    """``y^T v`` of chunks ``[Bh C, F, E]``, weighted, or the sums of keys if v is None; added to a total, in place."""
    if v is not None:
        return add_product(total, y.mT, weigh_sums(v, weights))
    if weights is None:
        z = y.sum(1)[..., None]
    else:
        z = (weights.keys.mT @ y.reshape(len(weights.keys), -1, *y.shape[1:])).flatten(0, 2)[..., None]
    return z if total is None else total.add_(z)


def _sum_rows(x: Tensor, top: Tensor, weights: ChunkWeights | None, total: Tensor | None = None) -> Tensor:
    """``x^T top`` of chunks ``[Bh C, F, E]``, weighted; added to a total, in place."""
    weighted = weigh_past(top, weights)
    if top.shape[2] > 1:
        return add_product(total, x.mT, weighted)
    z = (weighted.mT @ x).mT  # in the faster order
    return z if total is None else total.add_(z)


def add_product(total: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """``total + x @ y``, in place if there is a total."""
    return x @ y if total is None else total.baddbmm_(x, y)


def find_triangle(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A cached matrix ``[rows, columns]``: 1 for columns before the row, else 0."""

    def make() -> tuple[Tensor]:
        return (torch.ones(rows, columns, dtype=dtype, device=device).tril_(-1),)

    return MASK_CACHE.find(("triangle", rows, columns, dtype, device), make)[0]


def find_steady_weights(
    rates: tuple[float, ...], heads: int, size: int, count: int, dtype: torch.dtype, device: torch.device
) -> ChunkWeights:
    """`compute_steady_weights` of the rates of key-value heads, cached; heads: those of all rows of a batch."""

    def make() -> ChunkWeights:
        rate = torch.tensor(rates, dtype=torch.float64).to(device)
        return compute_steady_weights(rate.repeat(heads // len(rates))[:, None], size, count, dtype)

    return MASK_CACHE.find(("steady", rates, heads, size, count, dtype, device), make)


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
    later = find_triangle(size, size, torch.bool, a.device).mT
    pairs = exponentiate((near[:, None] - level[:, :, None]).masked_fill_(later, NEG_INF))
    not_before = find_triangle(count + 1, count + 1, torch.bool, a.device)[1:].mT
    return ChunkWeights(
        pairs[:, None, None],
        exponentiate(begin - level)[:, None, None, :, None],
        exponentiate(near - top)[:, None, :, None],
        (last[:, None] - base[..., None]).masked_fill_(not_before, NEG_INF).exp_().to(dtype),
        (reference[:, None] - base).exp_().to(dtype)[..., None],
        starts[:, -1].clone(),
    )


def compute_steady_weights(rate: Tensor, size: int, count: int, dtype: torch.dtype) -> ChunkWeights:
    """As `compute_chunk_weights`, if logarithms rise by ``rate [Bh, 1]`` at each position, so that ``count`` chunks of
    ``size`` positions have equal weights; without a reference."""
    position, chunk = (torch.arange(x, dtype=torch.float64, device=rate.device) for x in (size, count + 1))

    def fade(distance: Tensor) -> Tensor:
        logs = rate.view(-1, *(1 for _ in distance.shape)) * -distance
        return exponentiate(logs.masked_fill_(distance < 0, NEG_INF).to(dtype))

    return ChunkWeights(
        fade(position[:, None] - position)[:, None, None],
        fade(position + 1)[:, None, None, :, None],
        fade(size - 1 - position)[:, None, :, None],
        fade(size * (chunk[:, None] - 1 - chunk[:-1])),
        fade(size * chunk)[..., None],
        None,
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
