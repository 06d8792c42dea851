"""The multi-head layer from torch's own: the same weights and outputs, and what has no counterpart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import efficient_attn as ea
from efficient_attn.testing.tensor_comparison import assert_close

WIDTH, HEADS, LENGTH = 24, 4, 10


def drawn(length: int = LENGTH, *, seed: int = 0) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(seed))


def of_torch(**options: object) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(**{"embed_dim": WIDTH, "num_heads": HEADS, **options})  # pyright: ignore
    for p in module.parameters():  # torch's initial biases are zero
        nn.init.normal_(p, std=0.3)
    return module


def separate(module: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """The module with a weight each for queries, keys and values."""
    for name, weight in zip("qkv", module.in_proj_weight.detach().chunk(3), strict=True):
        setattr(module, f"{name}_proj_weight", nn.Parameter(weight.clone()))
    module.in_proj_weight = None  # pyright: ignore
    module._qkv_same_embed_dim = False
    return module


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_from_torch_is_torch(bias: bool, batch_first: bool, apart: bool) -> None:
    module = of_torch(bias=bias, batch_first=batch_first)
    module = separate(module) if apart else module
    layer = ea.MultiHeadAttention.from_torch(module)
    x, context = drawn(), drawn(7, seed=1)
    lengths = torch.tensor([7, 4])

    def asked(q: Tensor, kv: Tensor, **masks: Tensor) -> Tensor:
        q, kv = (t if batch_first else t.transpose(0, 1) for t in (q, kv))
        out = module(q, kv, kv, **masks)[0]
        return out if batch_first else out.transpose(0, 1)

    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    padding = torch.arange(7) >= lengths[:, None]
    for got, want in (
        (layer(x), asked(x, x)),
        (layer(x, mask=ea.Mask(causal=True)), asked(x, x, attn_mask=later)),
        (layer(x, context, ea.Mask(key_lengths=lengths)), asked(x, context, key_padding_mask=padding)),
    ):
        assert_close(got, want, "torch's layer", tolerance=1e-6)
    assert {n for n, _ in layer.named_parameters()} == {
        f"{p}_proj.{kind}" for p in ("q", "k", "v", "out") for kind in ("weight", *(["bias"] if bias else []))
    }


def test_from_torch_keeps_what_a_module_is_and_shares_nothing() -> None:
    module = of_torch(dropout=0.1).to(torch.bfloat16).eval()
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
    ("options", "words"),
    [
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_zero_attn"),
        ({"kdim": 8}, "kdim or vdim other than embed_dim"),
        ({"vdim": 8}, "kdim or vdim other than embed_dim"),
    ],
)
def test_from_torch_refuses_what_has_no_counterpart(options: dict[str, object], words: str) -> None:
    with pytest.raises(ea.UnsupportedError, match=f"no counterpart of {words}"):
        ea.MultiHeadAttention.from_torch(nn.MultiheadAttention(WIDTH, HEADS, **options))  # pyright: ignore
