"""The multi-head layer from `nn.MultiheadAttention`: equal weights and outputs, and unsupported options."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import efficient_attn as ea
from efficient_attn.testing.tensor_comparison import assert_close

WIDTH, HEADS, LENGTH = 24, 4, 10


def draw(length: int = LENGTH, *, seed: int = 0) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(seed))


def make_torch_module(**options: object) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(**{"embed_dim": WIDTH, "num_heads": HEADS, **options})  # pyright: ignore
    for p in module.parameters():  # torch's initial biases are zero
        nn.init.normal_(p, std=0.3)
    return module


def split_projections(module: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """The module with separate weights for queries, keys and values."""
    for name, weight in zip("qkv", module.in_proj_weight.detach().chunk(3), strict=True):
        setattr(module, f"{name}_proj_weight", nn.Parameter(weight.clone()))
    module.in_proj_weight = None  # pyright: ignore
    module._qkv_same_embed_dim = False
    return module


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_from_torch_gives_torchs_outputs(bias: bool, batch_first: bool, separate: bool) -> None:
    module = make_torch_module(bias=bias, batch_first=batch_first)
    module = split_projections(module) if separate else module
    layer = ea.MultiHeadAttention.from_torch(module)
    x, context = draw(), draw(7, seed=1)
    lengths = torch.tensor([7, 4])

    def run_torch(q: Tensor, kv: Tensor, **masks: Tensor) -> Tensor:
        q, kv = (t if batch_first else t.transpose(0, 1) for t in (q, kv))
        out = module(q, kv, kv, **masks)[0]
        return out if batch_first else out.transpose(0, 1)

    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    padding = torch.arange(7) >= lengths[:, None]
    for got, want in (
        (layer(x), run_torch(x, x)),
        (layer(x, mask=ea.Mask(causal=True)), run_torch(x, x, attn_mask=later)),
        (layer(x, context, ea.Mask(key_lengths=lengths)), run_torch(x, context, key_padding_mask=padding)),
    ):
        assert_close(got, want, "torch's layer", tolerance=1e-6)
    assert {n for n, _ in layer.named_parameters()} == {
        f"{p}_proj.{kind}" for p in ("q", "k", "v", "out") for kind in ("weight", *(["bias"] if bias else []))
    }


def test_from_torch_copies_parameters_with_dtype_mode_and_frozen_flags() -> None:
    module = make_torch_module(dropout=0.1).to(torch.bfloat16).eval()
    module.in_proj_weight.requires_grad_(False)
    layer = ea.MultiHeadAttention.from_torch(module)
    assert not layer.training
    assert layer.attn.dropout == 0.1
    assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
    frozen = {n for n, p in layer.named_parameters() if not p.requires_grad}
    assert frozen == {"q_proj.weight", "k_proj.weight", "v_proj.weight"}
    before = [p.detach().clone() for p in module.parameters()]
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "unsupported"),
    [
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_zero_attn"),
        ({"kdim": 8}, "kdim or vdim other than embed_dim"),
        ({"vdim": 8}, "kdim or vdim other than embed_dim"),
    ],
)
def test_from_torch_refuses_unsupported_options(options: dict[str, object], unsupported: str) -> None:
    with pytest.raises(ea.UnsupportedError, match=f"no counterpart of {unsupported}"):
        ea.MultiHeadAttention.from_torch(nn.MultiheadAttention(WIDTH, HEADS, **options))  # pyright: ignore
