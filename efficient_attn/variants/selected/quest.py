"""Attention over the pages of keys with the largest bounds on a query's scores."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ...contract import Budget, Growth, Mask, Traits
from ...contract.decode_state import KVCache, allocate, preallocate
from ...errors import UsageError, check_at_least_one
from ...kernels.dense import softmax_attention
from ...kernels.pages import LONG_CALL, LONG_STEP, Pages, attend_pages, select_pages
from ...kernels.selected_keys import spread_blocks
from ...patterns.pair_counts import count_block_pairs, count_possible_pairs
from .selected_attention import BLOCK_TRAITS, SelectedAttention


@dataclass(frozen=True, kw_only=True)
class PagedCache(KVCache):
    """All keys and values so far, and the least and greatest entries of each page of keys, ``[B, Hkv, pages, D]``."""

    page: int
    low: Tensor | None = None
    high: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> Self:
        """Append T positions and update the bounds of their pages."""
        first, state = self.length // self.page, super().append(k, v)
        assert state.keys is not None
        changed = state.keys[:, :, first * self.page : state.length]
        bounds, count = Pages.of(changed, self.page), -(-self.capacity // self.page)
        low, high = allocate(self.low, changed, count), allocate(self.high, changed, count)
        stop = first + bounds.low.shape[2]
        low[:, :, first:stop], high[:, :, first:stop] = bounds.low, bounds.high
        return replace(state, low=low, high=high)

    @property
    def pages(self) -> Pages:
        """The bounds so far."""
        assert self.low is not None
        assert self.high is not None
        count = -(-self.length // self.page)
        return Pages(self.low[:, :, :count], self.high[:, :, :count])


class Quest(SelectedAttention):
    """Softmax over a query's own page of keys, and the earlier pages with the largest bounds of their scores, selected
    for each query and head (Tang et al. 2024, arXiv:2406.10774). With the least and greatest entry of a page's keys in
    each dimension, no score of the page is larger than

        sum_d max(q_d low_d, q_d high_d) / sqrt(D)

    page: keys of a page. pages: earlier pages that a query sees; of equal bounds the first.

    Causal only. It keeps all keys and values, and the bounds of pages, which add ``1 / page`` of their size; a decode
    step reads the bounds and the selected pages. Up to 32 times as many keys as it selects, 4 times in a step, all
    scores are computed, which is faster (backend ``pages``). Bounds are in float64. Gradients are those of the selected
    keys.
    """

    backends = ("pages", "dense")

    def __init__(self, *, page: int = 16, pages: int = 7) -> None:
        super().__init__()
        check_at_least_one("quest", page=page, pages=pages)
        self.page, self.pages = page, pages

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """The own page, and as many others as the budget has room for; of up to 16 keys unless the spec says."""
        page = budget.options.get("page", max(min(16, budget.keys // 2), 1))
        if budget.keys < 2 * page:
            raise UsageError(f"quest: two pages have {2 * page} keys, the budget {budget.keys}")
        return {"page": page, "pages": budget.keys // page - 1}

    @property
    def traits(self) -> Traits:
        return BLOCK_TRAITS

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N)", self._cost, self._step_cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """The bounds of all pages, and the computed pairs."""
        return n * m / self.page + self.pairs_computed(n, m, causal)

    def _step_cost(self, m: int) -> float:
        """The bounds of all pages, and the keys of the selected ones."""
        selected = (self.pages + 1) * self.page
        return m / self.page + (m if m <= LONG_STEP * selected else selected)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        visible = mask.dense(n, m, device=q.device)
        keys, valid = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1), mask.key_valid(m)
        positions = mask.positions(n, m, device=q.device)
        selection = select_pages(q.double(), Pages.of(keys, self.page, valid), positions // self.page, self.pages)
        return softmax_attention(q, k, v, visible & spread_blocks(selection, self.page, m))

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return attend_pages(q, k, v, mask, self.page, self.pages)

    def pairs(self, n: int, m: int, causal: bool) -> int:
        return count_block_pairs(n, m, self.page, self.pages)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        selected = (self.pages + 1) * self.page
        return n * selected if m > LONG_CALL * selected else count_possible_pairs(n, m, causal)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> PagedCache:
        sizes = self.dims.cache_sizes(batch, self.kv_heads)
        state = preallocate(PagedCache(max_len, page=self.page), sizes, dtype, device)
        if state.keys is None:
            return state
        count = -(-max_len // self.page)
        low, high = (state.keys.new_zeros(*state.keys.shape[:2], count, state.keys.shape[3]) for _ in range(2))
        return replace(state, low=low, high=high)

    def why_no_starts(self) -> str | None:
        return "its pages count from the first position"

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, state: PagedCache, **inputs: Tensor
    ) -> tuple[Tensor, PagedCache]:
        state = state.append(k, v)
        keys, values = state.filled()
        if self.backend == "dense":
            return self.run(q, keys, values, state.mask), state
        return attend_pages(q, keys, values, state.mask, self.page, self.pages, state.pages), state
