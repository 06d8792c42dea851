"""Forgetting attention: the paper's formula, gates that stay open, and long sums of gates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import efficient_attn as ea

DIMS = ea.Dims(heads=4, kv_heads=2, head_dim=16, value_dim=12)
CAUSAL = ea.Mask(causal=True)


def draw(n: int, *, strength: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(2, h, n, w, generator=generator, dtype=dtype) for h, w in ((4, 16), (2, 16), (2, 12)))
    return q, k, v, -strength * torch.rand(2, 2, n, generator=generator, dtype=dtype)


def define(q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> Tensor:
    """The paper's F_ij, a product of gates from j + 1 to i, as a sum of each pair's logarithms."""
    n = q.shape[2]
    logs = torch.full((2, 4, n, n), float("-inf"), dtype=torch.float64)
    for i in range(n):
        for j in range(i + 1):
            logs[:, :, i, j] = gates[:, :, j + 1 : i + 1].double().sum(-1).repeat_interleave(2, 1)
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT / 4
    return (scores + logs).softmax(-1) @ v.double().repeat_interleave(2, 1)


@pytest.mark.parametrize("backend", ["sdpa", "dense"])
@pytest.mark.parametrize("strength", [0.1, 13.8])
@pytest.mark.parametrize("n", [1, 7, 70])
def test_the_result_is_the_papers(n: int, strength: float, backend: str) -> None:
    q, k, v, gates = draw(n, strength=strength)
    got = ea.create("forgetting", dims=DIMS, backend=backend)(q, k, v, CAUSAL, log_forget=gates)
    torch.testing.assert_close(got, define(q, k, v, gates), rtol=0, atol=1e-10)


def test_open_gates_are_full_attention() -> None:
    q, k, v, gates = draw(600, strength=0)
    got = ea.create("forgetting", dims=DIMS)(q, k, v, CAUSAL, log_forget=gates)
    torch.testing.assert_close(got, ea.create("full", dims=DIMS)(q, k, v, CAUSAL), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("strength", "bound"), [(0.02, 5e-6), (13.8, 1e-4)])
def test_float32_stays_close_over_thousands_of_gates(strength: float, bound: float) -> None:
    """The sums reach -27,000, whose rounding in float32 would be .002; those over 256 rows, -1,800, have .0001."""
    tensors = draw(4000, strength=strength)
    attn = ea.create("forgetting", dims=DIMS)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.float().to(dtype).requires_grad_() for x in tensors]
        out = attn(*leaves[:3], CAUSAL, log_forget=leaves[3])
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        results.append([out, *torch.autograd.grad((out * weights).sum(), leaves)])
    for mine, exact in zip(*results, strict=True):
        assert (mine.double() - exact).norm() < bound * exact.norm()


def test_a_block_is_computed_again_instead_of_stored() -> None:
    """Autograd stores the inputs, not the keys of each block with its column."""
    leaves = [x.float().requires_grad_() for x in draw(4096, strength=0.1)]
    saved: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        ea.create("forgetting", dims=DIMS)(*leaves[:3], CAUSAL, log_forget=leaves[3])
    assert sum(saved.values()) < 1.5 * sum(x.nbytes for x in leaves)
