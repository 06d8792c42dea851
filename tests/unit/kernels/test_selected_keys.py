"""Keys taken by their places, and the largest numbers of rows, against torch's own gather and stable sort."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from efficient_attn.kernels.selected_keys import FEW_ROWS, MOST_PASSES, find_largest, take_keys


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(2, index[..., None].expand(-1, -1, -1, x.shape[3]))


LAYOUTS = {
    "contiguous": lambda x: x,
    "part of a cache": lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    "projected": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "expanded heads": lambda x: x[:, :1].expand(-1, x.shape[1], -1, -1),
    "transposed width": lambda x: x.mT.contiguous().mT,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [0, 1, FEW_ROWS - 1, FEW_ROWS, 70])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_keys_and_their_gradients_are_those_of_gather(
    layout: str, count: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """With repeated places, whose gradients add."""
    x = LAYOUTS[layout](torch.randint(-8, 9, (2, 3, 40, 5), generator=generator).to(dtype))
    index = torch.randint(40, (2, 3, count), generator=generator)
    grad = torch.randint(-8, 9, (2, 3, count, 5), generator=generator).to(dtype)
    results = []
    for take in (take_keys, _gather):
        leaf = x.detach().requires_grad_()
        out = take(leaf, index)
        results.append((out.detach(), *torch.autograd.grad(out, leaf, grad)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_keys_can_be_taken_under_vmap(generator: torch.Generator) -> None:
    x, index = torch.randn(4, 2, 3, 40, 5, generator=generator), torch.randint(40, (4, 2, 3, 20), generator=generator)
    expected = torch.stack([_gather(*pair) for pair in zip(x, index, strict=True)])
    assert torch.equal(torch.vmap(take_keys)(x, index), expected)
    assert torch.equal(torch.vmap(take_keys)(x.mT.contiguous().mT, index), expected)


@pytest.mark.parametrize("columns", [1, 3, 17, 64])
@pytest.mark.parametrize("count", [0, 1, 2, 5, MOST_PASSES, MOST_PASSES + 1, 70])
def test_the_largest_are_those_of_a_stable_sort(columns: int, count: int, generator: torch.Generator) -> None:
    """Few different numbers, so that many are equal, and rows with fewer than count above minus infinity."""
    x = torch.randint(-3, 4, (5, 7, columns), generator=generator).double()
    x = x.masked_fill(torch.rand(x.shape, generator=generator) < 0.3, -torch.inf)
    x[0, 0] = -torch.inf
    expected = x.sort(dim=-1, descending=True, stable=True)
    values, places = find_largest(x.clone(), count)
    first = slice(min(count, columns))
    assert torch.equal(values, expected.values[..., first])
    exists = values > -torch.inf
    assert torch.equal(places[exists], expected.indices[..., first][exists])
