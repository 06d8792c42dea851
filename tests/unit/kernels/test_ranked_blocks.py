"""Blocks ranked by the scores of queries."""

from __future__ import annotations

import torch

from efficient_attn.kernels.compressed_blocks import BlockMeans
from efficient_attn.kernels.ranked_blocks import COLUMNS, rank_blocks


def test_later_blocks_do_not_change_a_rank(generator: torch.Generator) -> None:
    """Of a query in block 5 only the blocks before are ranked, whether or not the later ones are there."""
    keys = torch.randn(2, 3, 160, 16, generator=generator, dtype=torch.float64)
    q, own_block = torch.randn(2, 3, 4, 16, generator=generator, dtype=torch.float64), torch.tensor([5, 5, 4, 1])
    means = BlockMeans.of(keys, 2)
    assert (means.means.shape[2], means.before(5).means.shape[2], means.before(70).means.shape[2]) == (80, COLUMNS, 80)
    order, exists = rank_blocks(q @ means.means.mT, means.exists, own_block, 3)
    before = means.before(5)
    fewer_order, fewer_exist = rank_blocks(q @ before.means.mT, before.exists, own_block, 3)
    assert torch.equal(exists, fewer_exist)
    assert exists.sum(-1)[0, 0].tolist() == [3, 3, 3, 1]
    assert torch.equal(order[exists], fewer_order[fewer_exist])
    assert bool((order < own_block[:, None])[exists].all())
