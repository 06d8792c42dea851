"""Kernels as custom ops pass torch's opcheck, and traced calls are detected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.kernels.custom_ops import any_functorch_wrapped, in_functorch_transform, is_traced
from efficient_attn.kernels.hashed.lsh import sort_rounds
from efficient_attn.kernels.hashed.rounds import inverse_norms
from efficient_attn.kernels.native import building
from efficient_attn.kernels.sparse.pattern_op import write_pattern
from efficient_attn.patterns import Band, Blocks, Keys

OPS = torch.ops.efficient_attn
MECHANISMS = [
    ea.create(spec, dims=ea.Dims(head_dim=8, max_len=8)) for spec in ("reformer", "linear", "linformer", "gqa")
]


def tensor(*size: int, seed: int = 0) -> Tensor:
    numbers = torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.requires_grad_()


def calls() -> Iterator[Any]:
    text = write_pattern(Band(0, 9) | Keys(0, 2) | Blocks(16, 1))
    valid = torch.arange(40) < torch.tensor([40, 23])[:, None]
    rows, keys = tensor(4, 40, 2, 8), [tensor(4, 40, 8, seed=s) for s in (1, 2)]
    yield "sparse", (rows, *keys, valid, text, 0, True, "parts", 0.5)
    q, k, v = tensor(2, 3, 20, 8), tensor(2, 1, 20, 8, seed=1), tensor(2, 1, 20, 8, seed=2)
    yield "fused", (q, k, v, None, True, 0.5)
    yield "fused", (q, q, q, torch.zeros(1, 1, 20, 20, dtype=torch.float64), False, 0.5)
    yield "project", (tensor(1, 5, 20), tensor(2, 3, 20, 4))
    x, y, values = tensor(3, 2, 70, 5).exp(), tensor(3, 70, 5, seed=1).exp(), tensor(3, 70, 4, seed=2)
    kv, z, none = tensor(3, 5, 4), tensor(3, 5).exp(), torch.zeros(3, dtype=torch.float64)
    yield "scan", (x, y, values, None, kv, z, none, False, False, False, False)
    yield "scan", (x, y, values, tensor(3, 70), kv, z, none, True, False, False, False)
    rising = torch.arange(70.0).expand(3, -1).double() / 9
    yield "scan", (x, y, values, rising, kv, z, none - 1 / 9, True, True, True, False)
    rotations, vectors = torch.randn(2, 4, 32, 8), tensor(1, 2, 40, 8).detach().float()
    yield "sort_rounds", (vectors, rotations, 8, None)
    order, chunk = sort_rounds(vectors, rotations, 8).order, sort_rounds(vectors, rotations, 8).chunk
    flat = tensor(80, 8)
    inverse = inverse_norms(flat.detach())
    yield "rounds", (flat, flat, flat, inverse, order, chunk, None, 8, True, 0.5)


@pytest.mark.parametrize(("name", "args"), [pytest.param(*call, id=f"{call[0]}-{i}") for i, call in enumerate(calls())])
def test_ops_pass_opcheck(name: str, args: tuple[Any, ...]) -> None:
    utils = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static"]
    torch.library.opcheck(getattr(OPS, name), args, test_utils=utils)


@pytest.mark.skipif(bool(building.load_library("decode", build=True)[1]), reason="no C++ compiler")
def test_decode_op_passes_opcheck_and_supports_vmap() -> None:
    q, k, v = (torch.randn(2, 1, n, 8) for n in (3, 50, 50))
    half = [x.bfloat16() for x in (q, k, v)]
    for arguments in ((q, k, v, 0.5, None), (*half, 0.5, torch.rand(2, 50) < 0.5)):
        torch.library.opcheck(OPS.decode, arguments, test_utils=["test_schema", "test_faketensor"])
    attn = ea.create("full", backend="cpp")
    mapped = torch.func.vmap(lambda q: attn(q[None], k[:1], v[:1])[0])(q)
    torch.testing.assert_close(mapped, attn(q, k[:1].expand(2, -1, -1, -1), v[:1].expand(2, -1, -1, -1)))


def test_tracing_and_functorch_transforms_are_detected() -> None:
    x, detected = torch.ones(2), []
    assert not is_traced(x)
    assert is_traced(x.to("meta"))
    assert not in_functorch_transform()
    assert not any_functorch_wrapped([x])

    def record(y: Tensor) -> Tensor:
        detected.extend((in_functorch_transform(), any_functorch_wrapped([x]), any_functorch_wrapped([x, y])))
        return y.sum()

    torch.func.grad(record)(x)
    assert detected == [True, False, True]
