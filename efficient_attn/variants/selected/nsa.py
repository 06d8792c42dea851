"""Native sparse attention."""

import torch
from torch import Tensor

from ...contract import Attention, Budget, Growth, Input, Mask, Traits, Values, require_values
from ...contract.decode_state import preallocate
from ...errors import UsageError, check_at_least_one
from ...kernels.compressed_blocks import Compressed, attend_compressed, list_compressed
from ...kernels.dense import expand_heads, masked_softmax, softmax_attention, widen
from ...kernels.pages import attend_gathered, list_keys
from ...kernels.ranked_blocks import attend_lists
from ...kernels.selected_keys import spread_blocks
from ...kernels.softmax.block_lists import TILE_ROWS
from ..sparse.sliding_window import SlidingWindow
from .compressed_cache import CompressedCache


def branch_gates(x: Tensor) -> Tensor:
    """sigmoid(x)."""
    return torch.sigmoid(x)


class NSA(Attention):
    """g_1 softmax over the means of past blocks + g_2 softmax over selected blocks + g_3 softmax over a window (native
    sparse attention, Yuan et al. 2025, arXiv:2502.11089).

    Compressed keys and values are the means of blocks that end at the query or before it; the paper learns the
    compression, flash-linear-attention takes means too. Selected are ``topk`` blocks: the query's own, the first, the
    one before its own, and those with the largest weights in the compressed softmax, averaged over the heads of a
    group, which all select the same; of equal ones the first.

    Calls take ``gates [B, H, N, 3]``; layers make them with sigmoid. block: in keys. window: the query's own key and as
    many before it. Masked keys count in no mean. Weights that select are in float64, and have no gradient.

    Causal only. It keeps all keys and values, and the sums of blocks; a decode step reads these, the selected blocks
    and the window.
    """

    backends = ("blocks", "dense")
    declared = Traits(
        bidirectional=False,
        normalised=False,
        positional=True,
        mixes_heads=True,
        inputs={"gates": Input("query", tail=(3,), squash=branch_gates)},
    )

    def __init__(self, *, block: int = 64, topk: int = 16, window: int = 512) -> None:
        super().__init__()
        check_at_least_one("nsa", block=block, topk=topk)
        if window < 0:
            raise UsageError(f"nsa: window must be at least 0, not {window}")
        self.block, self.topk, self.window = block, topk, window
        self.near = SlidingWindow(window=window)

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """Half of the budget for blocks of up to 64 keys, unless the spec names a size, half for the window."""
        block = budget.options.get("block", max(min(64, budget.keys // 4), 1))
        if budget.keys < 2 * block:
            raise UsageError(f"nsa: a block and a window as long have {2 * block} keys, the budget {budget.keys}")
        topk = budget.keys // 2 // block
        return {"block": block, "topk": topk, "window": budget.keys - topk * block - 1}

    @property
    def traits(self) -> Traits:
        return self.declared

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N)", self._cost, self._step_cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """Products with the means of past blocks, and the pairs of selected blocks and of the window."""
        return sum(self._step_cost(i + 1) for i in range(max(m - n, 0), m))

    def _step_cost(self, m: int) -> float:
        selected = min((m - 1) // self.block, self.topk - 1) * self.block + (m - 1) % self.block + 1
        return m // self.block + selected + min(m, self.window + 1)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        (heads, n), m = q.shape[1:3], k.shape[2]
        keys, values = widen(expand_heads(k, heads)), widen(expand_heads(v, heads))
        valid, visible = mask.key_valid(m), mask.dense(n, m, device=q.device)
        positions = mask.positions(n, m, device=q.device)
        compressed = Compressed.of(keys, values, self.block, valid)
        scores = q.double() @ compressed.keys.means.mT * q.shape[3] ** -0.5
        weights = masked_softmax(scores, compressed.visible(positions))
        number = torch.arange(scores.shape[-1], device=q.device)
        listed = list_compressed(q, Compressed.of(k, v, self.block, valid), positions, self.topk - 1)
        selection = (listed[..., None] == number).any(-2) | (number == positions[:, None] // self.block)
        selection = expand_heads(spread_blocks(selection, self.block, m), heads)
        near = positions[:, None] - torch.arange(m, device=q.device) <= self.window
        branches = (
            (weights @ compressed.values.means).to(values.dtype),
            softmax_attention(widen(q), keys, values, visible & selection),
            softmax_attention(widen(q), keys, values, visible & near),
        )
        return _join(inputs["gates"], *branches).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        compressed = Compressed.of(k, v, self.block, mask.key_valid(k.shape[2]))
        return self._attend(q, k, v, mask, compressed, inputs["gates"])

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, compressed: Compressed, gates: Tensor) -> Tensor:
        n, m, dtype = q.shape[2], k.shape[2], q.dtype
        q, k, v = widen(q), widen(k), widen(v)  # so that the sum of three results is rounded once
        positions = mask.positions(n, m, device=q.device)
        lists = list_compressed(q, compressed, positions, self.topk - 1, start=mask.start(n, m))[:, :, None]
        selected = attend_lists(q, k, v, mask, lists.expand(-1, -1, q.shape[1] // k.shape[1], -1, -1), self.block)
        near = self.near.compute(q, k, v, mask)
        return _join(gates, attend_compressed(q, compressed, mask.start(n, m)), selected, near).to(dtype)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> CompressedCache:
        sizes = self.dims.cache_sizes(batch, self.kv_heads)
        return preallocate(CompressedCache(max_len, block=self.block), sizes, dtype, device).with_sums()

    def why_no_starts(self) -> str | None:
        return "its blocks count from the first position"

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, state: CompressedCache, **inputs: Tensor
    ) -> tuple[Tensor, CompressedCache]:
        state = state.append(k, v)
        keys, values = state.filled()
        if self.backend == "dense":
            return self.run(q, keys, values, state.mask, **inputs), state
        compressed = Compressed(state.means, state.value_means, self.block)
        attend = self._attend_rows if q.shape[2] < TILE_ROWS else self._attend
        return attend(q, keys, values, state.mask, compressed, inputs["gates"]), state

    def _attend_rows(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, compressed: Compressed, gates: Tensor
    ) -> Tensor:
        """`_attend` for few queries: no other keys are read than those of selected blocks and of the window."""
        (batch, heads, n, width), (kv_heads, m), rows = q.shape, k.shape[1:3], widen(q)
        group, positions = heads // kv_heads, mask.positions(n, m, device=q.device)
        listed = list_compressed(rows, compressed, positions, self.topk - 1).repeat(1, 1, group, 1)
        index, visible = list_keys(listed, listed >= 0, positions.repeat(group), self.block)
        queries = rows.reshape(batch, kv_heads, -1, width)
        selected = attend_gathered(None, index, visible, queries, k, v).view(batch, heads, n, v.shape[3])
        window = slice(max(m - n - self.window, 0), m)
        near = self.near.compute(rows, widen(k[:, :, window]), widen(v[:, :, window]), Mask(causal=True))
        return _join(gates, attend_compressed(rows, compressed, mask.start(n, m)), selected, near).to(q.dtype)

    def absorb(self, k: Tensor, v: Values, state: CompressedCache, **inputs: Tensor) -> CompressedCache:
        return state.append(k, require_values(v))


def _join(gates: Tensor, compressed: Tensor, selected: Tensor, near: Tensor) -> Tensor:
    first, second, third = widen(gates)[..., None, :].unbind(-1)
    return first * compressed + second * selected + third * near
