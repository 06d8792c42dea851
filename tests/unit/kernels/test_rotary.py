"""Rotary embeddings: both implementations agree, with derivatives and torch's transformations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from efficient_attn.kernels import rotary
from efficient_attn.kernels.rotary import rotate
from efficient_attn.layers.positions import Rotary, kept_turns, turns

ADJACENT = [False, True]


def tables(adjacent: bool, rotated: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    kind = Rotary(pairs="adjacent" if adjacent else "halves")
    return turns(torch.arange(3, 12), rotated, kind, dtype)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("adjacent", ADJACENT)
@pytest.mark.parametrize("width", [6, 10])
def test_copying_and_out_of_place_rotations_agree(adjacent: bool, width: int) -> None:
    for x in (draw(2, 3, 9, width), draw(2, 9, 3, width).movedim(2, 1)):
        args = (x, *tables(adjacent), adjacent)
        original = x.clone()
        torch.testing.assert_close(
            rotary._rotate_into_copy(*args), rotary._rotate_out_of_place(*args), rtol=0, atol=1e-12
        )
        assert torch.equal(x, original)
        torch.testing.assert_close(rotate(*args).norm(dim=-1), x.norm(dim=-1))  # a rotation


@pytest.mark.parametrize("adjacent", ADJACENT)
@pytest.mark.parametrize("width", [6, 10])
def test_first_and_second_derivatives_pass_gradcheck(adjacent: bool, width: int) -> None:
    x, args = draw(1, 2, 9, width).requires_grad_(), (*tables(adjacent), adjacent)
    assert torch.autograd.gradcheck(lambda x: rotate(x, *args), x)
    assert torch.autograd.gradgradcheck(lambda x: rotate(x, *args).square(), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x = draw(1, 2, 9, 10, dtype=dtype)
    want = rotate(x.float(), *tables(False, dtype=torch.float32), False).to(dtype)
    assert torch.equal(rotate(x, *tables(False, dtype=torch.float32), False), want)


@pytest.mark.parametrize("adjacent", ADJACENT)
def test_vmap_compile_and_grad_are_supported(adjacent: bool) -> None:
    x, args = draw(3, 2, 9, 6), (*tables(adjacent), adjacent)
    want = rotate(x, *args)
    torch.testing.assert_close(torch.func.vmap(lambda x: rotate(x, *args))(x), want)
    compiled = torch.compile(lambda x: rotate(x, *args), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), want)
    torch.testing.assert_close(torch.func.grad(lambda x: rotate(x, *args).square().sum())(x), 2 * x)


def test_angles_cached_in_inference_mode_allow_training() -> None:
    kept_turns.cache_clear()
    with torch.inference_mode():
        Rotary().place_queries(draw(1, 1, 9, 6), 3)
    x = draw(1, 1, 9, 6).requires_grad_()
    Rotary().place_queries(x, 3).sum().backward()
    assert x.grad is not None


def test_cached_angles_depend_on_options_and_start() -> None:
    x = draw(1, 1, 9, 8)
    kinds = [Rotary(), Rotary(base=500.0), Rotary(stretch=2.0), Rotary(pairs="adjacent"), Rotary(part=0.5)]
    for start in (0, 5):
        by_integer = [kind.place_queries(x, start) for kind in kinds for _ in range(2)]
        by_tensor = [kind.place_queries(x, torch.tensor([start])) for kind in kinds for _ in range(2)]
        for actual, expected in zip(by_integer, by_tensor, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
