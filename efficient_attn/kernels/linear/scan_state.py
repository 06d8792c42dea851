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


class ScanState:
    """The sums over all chunks so far ``[Bh, F, E]``, or in the backward pass their gradients; None is zero. decays,
    steady, rates: see `LinearConfig`. divides: whether sums of weights are divisors, which are one more column;
    otherwise they are not computed."""

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
        self.sums, self._z, self.reference = None, None, None if past is None else past.reference
        self._steady_weights: dict[tuple[int, int], ChunkWeights] = {}
        if past is not None:
            self.replace(past.kv, past.z)

    def replace(self, kv: Tensor, z: Tensor) -> None:
        """Set the sums to copies of these, as `split` returns them."""
        self.sums, self._z = (torch.cat([kv, z[..., None]], 2), None) if self.divides else (kv.clone(), z)

    def split(self) -> tuple[Tensor, Tensor]:
        """The sums of products ``[Bh, F, E]`` and those of keys ``[Bh, F]``."""
        assert self.sums is not None
        if self.divides:
            return self.sums[..., :-1].contiguous(), self.sums[..., -1].contiguous()
        return self.sums, self.sums.new_zeros(self.sums.shape[:2]) if self._z is None else self._z.clone()

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
        self, y: Tensor, v: Tensor, count: int, weights: ChunkWeights | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The sums before each of C chunks of keys ``[Bh C, c, F]`` and values ``[Bh C, c, E]``, and those of each
        chunk ``[Bh, C, F E]``, for `advance`. A single chunk reads the state, and has none."""
        if count == 1:
            return self.sums, None
        chunk_sums = (y.mT @ weigh_sums(v, weights)).view(-1, count, y.shape[2] * v.shape[2])
        before = self._coefficients(chunk_sums, weights)[:, :count] @ chunk_sums
        if self.sums is not None:
            _add_state(before, self.sums, None if weights is None else weights.carry[:, :count])
        return before.view(len(y), y.shape[2], v.shape[2]), chunk_sums

    def advance(self, y: Tensor, v: Tensor, weights: ChunkWeights | None, chunk_sums: Tensor | None) -> None:
        """Add the chunks to the state, in place if there is one."""
        if weights is not None:
            self.reference = weights.reference
        factors = None if weights is None else weights.sums[:, -1:]
        self._add(y, v if chunk_sums is not None else weigh_sums(v, weights), weights, chunk_sums, factors)

    def read_backward(
        self, x: Tensor, tops: Tensor, count: int, weights: ChunkWeights | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The transpose of `read`: gradients of each chunk's sums, from rows ``[Bh C, G c, F]`` and their gradients."""
        if count == 1:
            return self.sums, None
        chunk_grads = (x.mT @ weigh_past(tops, weights)).view(-1, count, x.shape[2] * tops.shape[2])
        coefficients = self._coefficients(chunk_grads, weights).mT
        after = coefficients[..., :count] @ chunk_grads
        if self.sums is not None:
            _add_state(after, self.sums, None if weights is None else coefficients[..., count:])
        return after.view(len(x), x.shape[2], tops.shape[2]), chunk_grads

    def advance_backward(
        self, x: Tensor, tops: Tensor, weights: ChunkWeights | None, chunk_grads: Tensor | None
    ) -> None:
        """From the gradient by the state after chunks to that by the state before them."""
        factors = None if weights is None else weights.carry[:, :-1].mT
        self._add(x, tops if chunk_grads is not None else weigh_past(tops, weights), weights, chunk_grads, factors)

    def _add(
        self, x: Tensor, v: Tensor, weights: ChunkWeights | None, chunk_sums: Tensor | None, factors: Tensor | None
    ) -> None:
        """Add ``x^T v`` of one chunk, or the sums of several by factors ``[Bh, 1, C]``, to the decayed state."""
        past = self.sums
        if chunk_sums is None and past is not None:
            past = past if weights is None else past.mul_(weights.carry[:, -1:])
            self.sums = past.baddbmm_(x.mT, v)
        elif chunk_sums is None:
            self.sums = x.mT @ v
        else:
            total = chunk_sums.sum(1, keepdim=True) if factors is None else factors @ chunk_sums
            if past is not None:
                _add_state(total, past, None if weights is None else weights.carry[:, -1:])
            self.sums = total.view(len(total), x.shape[2], v.shape[2])

    @staticmethod
    def _coefficients(chunk_sums: Tensor, weights: ChunkWeights | None) -> Tensor:
        """The weights ``[Bh, C + 1, C]`` of chunks before each chunk and after the last: 1 by default."""
        heads, count, _ = chunk_sums.shape
        if weights is not None:
            return weights.sums
        return find_triangle(count + 1, count, chunk_sums.dtype, chunk_sums.device).expand(heads, -1, -1)


def _add_state(sums: Tensor, state: Tensor, carry: Tensor | None) -> None:
    """Add a state ``[Bh, F, E]``, weighted by ``[Bh, C, 1]``, to sums ``[Bh, C, F E]``, in place."""
    flat = state.reshape(len(state), 1, -1)
    sums.add_(flat) if carry is None else sums.addcmul_(flat, carry)


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
