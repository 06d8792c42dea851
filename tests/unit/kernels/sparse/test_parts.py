"""Softmax over a plan: padding, groups, memory, and the engine of other devices."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea
from efficient_attn.kernels.softmax import merge
from efficient_attn.kernels.sparse import parts
from efficient_attn.kernels.sparse.parts import PlanConfig, SparseInputs, softmax_over_plan
from efficient_attn.kernels.sparse.tiles import Gather, Step, Tile, Tiling, TilingRule, View
from efficient_attn.patterns import Band, Geometry

ALL_PAIRS = TilingRule(Band(None, None), (), Geometry(64, 64, 0, False))


def plan(*tiles: Tile, columns: torch.Tensor | None = None) -> tuple[Tiling, ...]:
    return (Tiling(tiles, columns),)


def test_masks_include_padding_holes_and_groups() -> None:
    valid = torch.tensor([[True, True, False, True], [True, True, True, True]])
    like = torch.zeros(4, 1, 3, 1)
    gathered = Tile(1, View(0, 1), Gather(torch.tensor([[0, -1]]), 2, False), ALL_PAIRS)
    config = PlanConfig(plan(gathered), group=3, scale=1.0)
    mask, blind = config.mask(config.plan[0], Step(gathered, 0, 1), like, valid)
    assert mask is not None
    assert mask.shape == (4, 1, 3, 4)
    assert (mask == 0)[:, 0, 0].int().tolist() == [[1, 1, 0, 0]] * 4
    assert blind is not None
    assert not blind.any()
    valid_pair = torch.tensor([[False, True], [True, False]])
    pair = Tile(1, View(0, 1), View(0, 2), None)
    mask, _ = PlanConfig(plan(pair), 1, 1.0).mask(Tiling((pair,)), Step(pair, 0, 1), like, valid_pair)
    assert mask is not None
    assert (mask == 0)[:, 0, 0].int().tolist() == [[0, 1], [0, 1], [1, 0], [1, 0]]  # a batch row's heads are adjacent
    first = Tile(1, View(0, 1), View(0, 1), None)
    _, blind = PlanConfig(plan(first), 1, 1.0).mask(Tiling((first,)), Step(first, 0, 1), like, valid_pair)
    assert blind is not None
    assert blind[:, 0, 0].tolist() == [True, True, False, False]


def test_no_mask_if_all_pairs_count_without_padding() -> None:
    tile = Tile(1, View(0, 1), View(0, 2), None)
    like = torch.zeros(1, 1, 1, 1)
    assert PlanConfig(plan(tile), 1, 1.0).mask(Tiling((tile,)), Step(tile, 0, 1), like, None) == (None, None)


def test_rows_in_no_tile_are_zero_and_have_no_gradient() -> None:
    q, k = torch.randn(1, 6, 1, 8, requires_grad=True), torch.randn(1, 6, 8, requires_grad=True)
    config = PlanConfig(plan(Tile(1, View(2, 3), View(0, 6), None, fresh=True)), 1, 1.0)
    out = softmax_over_plan(SparseInputs(q, k, k, None), config)
    assert not out[:, [0, 1, 5]].any()
    assert out[:, 2:5].all()
    out.sum().backward()
    assert q.grad is not None
    assert not q.grad[:, [0, 1, 5]].any()


def test_gathered_columns_get_their_gradients() -> None:
    q, k, v = (torch.randn(1, 6, *rest, 8, dtype=torch.float64, requires_grad=True) for rest in ((1,), (), ()))
    columns = torch.tensor([1, 4, 5])
    config = PlanConfig(plan(Tile(1, View(0, 6), View(0, 3), None, fresh=True), columns=columns), 1, 0.5)
    out = softmax_over_plan(SparseInputs(q, k, v, None), config)
    want = ((q[:, :, 0] @ k[:, columns].mT) * 0.5).softmax(-1) @ v[:, columns]
    torch.testing.assert_close(out[:, :, 0], want)
    weight = torch.randn_like(want)
    grads = torch.autograd.grad((out[:, :, 0] * weight).sum(), (q, k, v))
    for actual, expected in zip(grads, torch.autograd.grad((want * weight).sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("spec", ["sliding_window:window=32", "longformer:window=16:n_global=4", "bigbird:window=9"])
def test_only_inputs_output_and_log_sum_exp_are_saved(spec: str) -> None:
    q, k, v = (torch.randn(1, 2, 512, 8, requires_grad=True) for _ in range(3))
    storages = {x.untyped_storage().data_ptr() for x in (q, k, v)}
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        ea.create(spec, backend="parts")(q, k, v, ea.Mask())
    extra = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in saved}
    extra_bytes = sum(size for pointer, size in extra.items() if pointer not in storages)
    assert extra_bytes <= 2 * 512 * 4 * (8 + 1)  # the output and a log-sum-exp per row


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "spec", ["sliding_window:window=5", "bigbird:window=3:n_global=2:block_size=8", "fixed:stride=9"]
)
def test_unfused_engine_gives_the_same_output_and_gradients(spec: str, padded: bool, monkeypatch) -> None:
    attn = ea.create(spec, backend="parts")
    q = torch.randn(2, 4, 90, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 2, 90, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = ea.Mask(causal=True, key_lengths=torch.tensor([90, 0]) if padded else None)

    def output_and_grads() -> tuple[torch.Tensor, ...]:
        out = attn(q, k, v, mask)
        return out, *torch.autograd.grad((out * out.detach().cos()).sum(), (q, k, v))

    fused = output_and_grads()
    monkeypatch.setattr(parts, "attend", merge.attend_unfused)
    monkeypatch.setattr(parts, "attend_backward", merge.attend_unfused_backward)
    for actual, expected in zip(fused, output_and_grads(), strict=True):
        torch.testing.assert_close(actual, expected)


def test_half_precision_parts_are_joined_in_float32() -> None:
    attn, exact = (ea.create("bigbird:window=9:block_size=16:n_global=20", backend=b) for b in ("parts", "dense"))
    q, k, v = (torch.randn(1, 2, 256, 16) for _ in range(3))
    want = exact(q.bfloat16().double(), k.bfloat16().double(), v.bfloat16().double(), ea.Mask())
    got = attn(q.bfloat16(), k.bfloat16(), v.bfloat16(), ea.Mask())
    assert got.dtype == torch.bfloat16
    assert (got - want).abs().max() < 0.02


@pytest.mark.parametrize("backend", ["parts", "masked"])
def test_a_second_derivative_is_refused(backend: str) -> None:
    q = torch.randn(1, 1, 20, 8, requires_grad=True)
    (grad,) = torch.autograd.grad(
        ea.create("longformer:window=3:n_global=2", backend=backend)(q, q, q).square().sum(), q, create_graph=True
    )
    with pytest.raises(ea.UnsupportedError, match="no second derivative; backend=dense has one"):
        grad.sum().backward()
