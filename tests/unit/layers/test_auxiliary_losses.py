"""The loss that trains an indexer: its formula, what has a gradient by it, and that selections become better."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import efficient_attn as ea

DIMS = ea.Dims(heads=6, kv_heads=2, head_dim=16)
SPEC = "dsa:topk=4:index_heads=3:index_dim=5"


def draw(n: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], dict[str, Tensor]]:
    attn = ea.create(SPEC, dims=DIMS)
    sample = attn.sample(ea.Shape(2, 6, 2, n, n, 16, 16), generator=torch.Generator().manual_seed(n), dtype=dtype)
    assert sample.v is not None
    return [sample.q, sample.k, sample.v], {key: x.requires_grad_() for key, x in sample.inputs.items()}


@pytest.mark.parametrize("lengths", [None, (33, 90)])
def test_the_loss_is_the_divergence_from_exact_attention(lengths: tuple[int, ...] | None) -> None:
    """Query by query and key by key."""
    n, ((q, k, _), inputs) = 90, draw(90)
    mask = ea.Mask(causal=True, key_lengths=None if lengths is None else torch.tensor(lengths))
    loss = ea.create(SPEC, dims=DIMS).auxiliary_loss(q, k, mask, **inputs)
    assert loss is not None
    terms = []
    for b in range(2):
        for i in range(n):
            last = min(i + 1, n if lengths is None else lengths[b])
            weights = [(q[b, h, i] @ k[b, h // 3, :last].mT / 4).softmax(0) for h in range(6)]
            target = torch.stack(weights).mean(0)
            index = [inputs[name][b, 0] for name in ("index_q", "index_w", "index_k")]
            products = (index[0][i] @ index[2][:last].mT).relu()
            logs = (index[1][i] @ products).log_softmax(0)
            terms.append((target * (target.log() - logs)).sum())
    expected = torch.stack(terms).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    grads = [torch.autograd.grad(x, list(inputs.values())) for x in (loss, expected)]
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-14)


def test_a_layer_trains_its_indexer_by_this_loss_alone() -> None:
    layer = ea.MultiHeadAttention(24, 2, variant=SPEC)
    assert ea.train_selections(layer) == [layer.attn]
    x = torch.randn(2, 12, 24, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with ea.collect_auxiliary_losses(layer) as losses:
        out = layer(x, mask=ea.Mask(causal=True))
    (loss,) = losses
    names = [name for name, parameter in layer.named_parameters() if "index_" in name]
    assert len(names) == 6
    for total, expects_indexer in ((loss, True), (out.square().sum(), False)):
        sources = [x, *layer.parameters()]
        grads = torch.autograd.grad(total, sources, allow_unused=True, retain_graph=True)
        by_name = dict(zip(["x", *(name for name, _ in layer.named_parameters())], grads, strict=True))
        has_gradient = {name for name, grad in by_name.items() if grad is not None and grad.any()}
        assert has_gradient & set(names) == (set(names) if expects_indexer else set())
        assert ("x" in has_gradient) is not expects_indexer
    with ea.collect_auxiliary_losses(layer.eval()) as losses:
        layer(x, mask=ea.Mask(causal=True))
    assert not losses
    assert not layer.attn._forward_hooks


def test_other_mechanisms_have_no_such_loss() -> None:
    layer = ea.MultiHeadAttention(24, 2, variant="moba:block=4:topk=2")
    assert ea.train_selections(layer) == []
    with ea.collect_auxiliary_losses(layer) as losses:
        layer(torch.zeros(1, 8, 24), mask=ea.Mask(causal=True))
    assert losses == []


def test_selections_become_those_of_exact_attention() -> None:
    """The error of the output, before and after 100 steps; heads agree on which keys matter."""
    (q, k, v), inputs = draw(64, torch.float32)
    q, k = (2 * x[:, :1].expand_as(x) for x in (q, k))
    attn, causal = ea.create(SPEC, dims=DIMS), ea.Mask(causal=True)
    optimizer, exact = torch.optim.Adam(inputs.values(), lr=0.05), ea.create("full", dims=DIMS)(q, k, v, causal)

    def measure_error() -> float:
        with torch.no_grad():
            return float((attn(q, k, v, causal, **inputs) - exact).norm() / exact.norm())

    before = measure_error()
    for _ in range(100):
        loss = attn.auxiliary_loss(q, k, causal, **inputs)
        assert loss is not None
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert measure_error() < 0.3 * before
