"""The decays between positions of a chunk, and products of rows and keys that are weighted by them.

    W_ri = sum_d x_rd y_id e^(G_rd - G_id)  for keys i <= r,    G_r = g_1 + .. + g_r,  g the logarithms of decays

e^(G_r) y_i e^(-G_i) overflows: decays of 1e-6 leave e^(-884) of 64 positions. `NoDecay` has no g, `_HeadDecay` one
for each position, so that the c x c differences are few. `_ChannelDecay` has one for each channel. It halves blocks:
all pairs of a row in the second half and a key in the first are one product, relative to the middle between them, where
both exponents are negative (the secondary chunks of arXiv:2312.06635, at each size). Sums of g always begin at the
reference, so that nothing cancels. Pairs within the smallest blocks are products relative to their first position:
a later one would make a row's rounding depend on what follows it.

Shapes: rows ``[n, c, R, D]``, R at each position, perhaps none, keys ``[n, c, D]``, weights ``[n, c, R, c]``, g ``[n,
c, 1 or D]``.
"""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 4  # positions of the smallest blocks
# Smaller logarithms of decays by channel are raised to these, so that those of a block stay in range. What is left
# of the past is then 1e-7, or 1e-69 in float64, instead of less.
MIN_LOGS = {torch.float32: -16.0, torch.float64: -160.0}


class NoDecay:
    """Chunks without decays."""

    masked = False  # whether weights of later keys are zero already

    def weigh_pairs(self, rows: Tensor, keys: Tensor) -> Tensor:
        """W, whose columns of later keys are not defined."""
        return (rows.flatten(1, 2) @ keys.mT).unflatten(1, rows.shape[1:3])

    def weigh_pairs_backward(self, grad: Tensor, rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by rows and by keys; grad is zero for later keys."""
        flat = grad.flatten(1, 2)
        return (flat @ keys).unflatten(1, rows.shape[1:3]), flat.mT @ rows.flatten(1, 2)

    def from_start(self, x: Tensor) -> Tensor:
        """x ``[n, c, ..., D]`` times the decay from the chunk's start to each position."""
        return x

    def to_end(self, x: Tensor) -> Tensor:
        """x ``[n, c, D]`` times the decay from each position to the chunk's end."""
        return x

    def over_all(self, x: Tensor) -> Tensor:
        """A state ``[n, D, E]`` times the decay over the chunk."""
        return x


class _HeadDecay(NoDecay):
    """One decay for all channels of a position."""

    masked = True

    def __init__(self, g: Tensor) -> None:
        self.sums, self.dtype = g.double().cumsum(1), g.dtype

    @cached_property
    def pairs(self) -> Tensor:
        """``[n, c, 1, c]``, zero for later keys. What rounding takes from large sums is added."""
        high = self.sums.to(self.dtype)
        low = (self.sums - high).to(self.dtype)
        logs = (high - high.mT).add_(low).sub_(low.mT)
        return logs.exp_().tril_()[:, :, None]

    @cached_property
    def starts(self) -> Tensor:
        """``[n, c, 1]``."""
        return self.sums.to(self.dtype).exp()

    @cached_property
    def ends(self) -> Tensor:
        """``[n, c, 1]``."""
        return (self.sums[:, -1:] - self.sums).to(self.dtype).exp_()

    def weigh_pairs(self, rows: Tensor, keys: Tensor) -> Tensor:
        return super().weigh_pairs(rows, keys).mul_(self.pairs)

    def weigh_pairs_backward(self, grad: Tensor, rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return super().weigh_pairs_backward(grad * self.pairs, rows, keys)

    def from_start(self, x: Tensor) -> Tensor:
        return x * (self.starts if x.ndim == 3 else self.starts[:, :, None])

    def to_end(self, x: Tensor) -> Tensor:
        return x * self.ends

    def over_all(self, x: Tensor) -> Tensor:
        return x * self.starts[:, -1:].mT


class _Level(NamedTuple):
    """Factors of blocks of two halves of ``half`` positions each, ``[n, blocks, half, D]``: of rows in the second, and
    of keys in the first."""

    half: int
    rows: Tensor
    keys: Tensor


class _ChannelDecay(NoDecay):
    """A decay for each channel of a position; c is a power of two of at least `BLOCK`."""

    def __init__(self, g: Tensor) -> None:
        g = g.clamp(min=MIN_LOGS[g.dtype]).unflatten(1, (-1, BLOCK))  # [n, blocks, BLOCK, D]
        before, after = g.cumsum(2), _sum_after(g)
        exponents = before - g[:, :, :1]  # from the block's first position: rows have e^x, and keys e^(-x)
        self.block_rows, self.block_keys = exponents.exp(), exponents.neg_().exp_()
        self.levels: list[_Level] = []
        while before.shape[1] > 1:  # sums from the start of blocks, and to their ends, of blocks of twice the size
            first_before, second_before = before.unflatten(1, (-1, 2)).unbind(2)
            first_after, second_after = after.unflatten(1, (-1, 2)).unbind(2)
            self.levels.append(_Level(before.shape[2], second_before.exp(), first_after.exp()))
            totals = first_before[:, :, -1:], second_before[:, :, -1:]
            before = torch.cat([first_before, second_before + totals[0]], 2)
            after = torch.cat([first_after + totals[1], second_after], 2)
        self.starts, self.ends = before[:, 0].exp(), after[:, 0].exp()

    def weigh_pairs(self, rows: Tensor, keys: Tensor) -> Tensor:
        n, c, count, _ = rows.shape
        weights = rows.new_zeros(n, c, count, c)
        for half, row_factors, key_factors in self.levels:
            x, y = _second_rows(rows, half) * row_factors[:, :, :, None], _first_keys(keys, half) * key_factors
            _view_blocks(weights, half)[:, half:, :, :half] = _unfold(_fold(x) @ y.mT, count)
        x, y = self._weigh_blocks(rows, keys)
        _view_blocks(weights, BLOCK // 2).copy_(_unfold(_fold(x) @ y.mT, count))
        return weights

    def weigh_pairs_backward(self, grad: Tensor, rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        count = rows.shape[2]
        x, y = self._weigh_blocks(rows, keys)
        blocks = _fold(_view_blocks(grad, BLOCK // 2).permute(0, 4, 1, 2, 3))
        grad_rows = (blocks @ y).unflatten(2, (BLOCK, count)).mul_(self.block_rows[:, :, :, None]).flatten(1, 2)
        grad_keys = (blocks.mT @ _fold(x)).mul_(self.block_keys).flatten(1, 2)
        for half, row_factors, key_factors in self.levels:
            x, y = _second_rows(rows, half) * row_factors[:, :, :, None], _first_keys(keys, half) * key_factors
            blocks = _fold(_view_blocks(grad, half)[:, half:, :, :half].permute(0, 4, 1, 2, 3))
            _second_rows(grad_rows, half).addcmul_((blocks @ y).unflatten(2, (half, count)), row_factors[:, :, :, None])
            _first_keys(grad_keys, half).addcmul_(blocks.mT @ _fold(x), key_factors)
        return grad_rows, grad_keys

    def _weigh_blocks(self, rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``[n, blocks, BLOCK, R, D]`` and keys ``[n, blocks, BLOCK, D]``, relative to its first position."""
        x = rows.unflatten(1, (rows.shape[1] // BLOCK, BLOCK)) * self.block_rows[:, :, :, None]
        return x, keys.unflatten(1, (-1, BLOCK)) * self.block_keys

    def from_start(self, x: Tensor) -> Tensor:
        return x * (self.starts if x.ndim == 3 else self.starts[:, :, None])

    def to_end(self, x: Tensor) -> Tensor:
        return x * self.ends

    def over_all(self, x: Tensor) -> Tensor:
        return x * self.starts[:, -1, :, None]


def make_decay(g: Tensor | None) -> NoDecay:
    """The decays of chunks with logarithms g ``[n, c, 1 or D]``."""
    if g is None:
        return NoDecay()
    return _HeadDecay(g) if g.shape[2] == 1 else _ChannelDecay(g)


def _sum_after(g: Tensor) -> Tensor:
    """Sums ``[n, blocks, half, D]`` over the positions after each one."""
    flipped = g.flip(2).cumsum(2).flip(2)
    return torch.cat([flipped[:, :, 1:], torch.zeros_like(g[:, :, :1])], 2)


def _second_rows(rows: Tensor, half: int) -> Tensor:
    """``[n, blocks, half, R, D]``: a view of rows in the second halves of blocks."""
    return rows.unflatten(1, (rows.shape[1] // (2 * half), 2, half))[:, :, 1]


def _first_keys(keys: Tensor, half: int) -> Tensor:
    """``[n, blocks, half, D]``: a view of keys in the first halves of blocks."""
    return keys.unflatten(1, (-1, 2, half))[:, :, 0]


def _view_blocks(weights: Tensor, half: int) -> Tensor:
    """``[n, 2 half, R, 2 half, blocks]``: a view of the blocks of ``2 half`` positions along the diagonal."""
    n, c, count, _ = weights.shape
    size = 2 * half
    return weights.view(n, c // size, size, count, c // size, size).diagonal(dim1=1, dim2=4)


def _fold(x: Tensor) -> Tensor:
    """``[n, blocks, half, R, D]`` to ``[n, blocks, half R, D]``."""
    return x.flatten(2, 3)


def _unfold(products: Tensor, count: int) -> Tensor:
    """``[n, blocks, half R, half]`` to ``[n, half, R, half, blocks]``."""
    return products.unflatten(2, (products.shape[3], count)).permute(0, 2, 3, 4, 1)
