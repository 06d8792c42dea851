"""Pairs turned by angles: both forms are one, derivatives are turns, and torch's transformations see through them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from efficient_attn.kernels import rotary
from efficient_attn.kernels.rotary import rotate
from efficient_attn.layers.positions import Rotary, kept_turns, turns

ADJACENT = [False, True]


def tables(adjacent: bool, turned: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    kind = Rotary(pairs="adjacent" if adjacent else "halves")
    return turns(torch.arange(3, 12), turned, kind, dtype)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("adjacent", ADJACENT)
@pytest.mark.parametrize("width", [6, 10])
def test_both_forms_are_one(adjacent: bool, width: int) -> None:
    for x in (draw(2, 3, 9, width), draw(2, 9, 3, width).movedim(2, 1)):
        given = (x, *tables(adjacent), adjacent)
        kept = x.clone()
        torch.testing.assert_close(
            rotary._rotate_into_copy(*given), rotary._rotate_out_of_place(*given), rtol=0, atol=1e-12
        )
        assert torch.equal(x, kept)
        torch.testing.assert_close(rotate(*given).norm(dim=-1), x.norm(dim=-1))  # a rotation


@pytest.mark.parametrize("adjacent", ADJACENT)
@pytest.mark.parametrize("width", [6, 10])
def test_gradients_are_turns_of_any_order(adjacent: bool, width: int) -> None:
    x, given = draw(1, 2, 9, width).requires_grad_(), (*tables(adjacent), adjacent)
    assert torch.autograd.gradcheck(lambda x: rotate(x, *given), x)
    assert torch.autograd.gradgradcheck(lambda x: rotate(x, *given).square(), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x = draw(1, 2, 9, 10, dtype=dtype)
    want = rotate(x.float(), *tables(False, dtype=torch.float32), False).to(dtype)
    assert torch.equal(rotate(x, *tables(False, dtype=torch.float32), False), want)


@pytest.mark.parametrize("adjacent", ADJACENT)
def test_transformations_see_through_it(adjacent: bool) -> None:
    x, given = draw(3, 2, 9, 6), (*tables(adjacent), adjacent)
    want = rotate(x, *given)
    torch.testing.assert_close(torch.func.vmap(lambda x: rotate(x, *given))(x), want)
    compiled = torch.compile(lambda x: rotate(x, *given), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), want)
    torch.testing.assert_close(torch.func.grad(lambda x: rotate(x, *given).square().sum())(x), 2 * x)


def test_kept_angles_serve_training_after_inference() -> None:
    kept_turns.cache_clear()
    with torch.inference_mode():
        Rotary().place_queries(draw(1, 1, 9, 6), 3)
    x = draw(1, 1, 9, 6).requires_grad_()
    Rotary().place_queries(x, 3).sum().backward()
    assert x.grad is not None


def test_kept_angles_are_those_of_what_is_asked() -> None:
    x = draw(1, 1, 9, 8)
    kinds = [Rotary(), Rotary(base=500.0), Rotary(stretch=2.0), Rotary(pairs="adjacent"), Rotary(part=0.5)]
    for start in (0, 5):
        found = [kind.place_queries(x, start) for kind in kinds for _ in range(2)]
        rows = [kind.place_queries(x, torch.tensor([start])) for kind in kinds for _ in range(2)]
        for one, other in zip(found, rows, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
