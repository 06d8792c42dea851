"""flash-linear-attention's plain forms of recurrent states equal our mechanisms, with gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tiny_suites
import torch

import efficient_attn as ea

DIMS = ea.Dims(heads=3, kv_heads=3, head_dim=16, value_dim=24)
PAIRS = {
    "peer_gla": "gla",
    "peer_delta_rule": "delta_net",
    "peer_delta_rule:form=recurrent": "delta_net",
    "peer_gated_delta_rule": "gated_delta_net",
    "peer_kda": "kda",
    "peer_kda:form=recurrent": "kda",
}
CAUSAL = ea.Mask(causal=True)


@pytest.fixture(autouse=True)
def loaded() -> Iterator[None]:
    pytest.importorskip("fla")
    with tiny_suites.isolated_registry():
        ea.load_plugin("efficient_attn.peers.fla_recurrent")
        yield


@pytest.mark.parametrize("n", [1, 63, 150])
@pytest.mark.parametrize("peer", PAIRS)
def test_results_and_gradients_equal_ours(peer: str, n: int) -> None:
    theirs, ours = ea.create(peer, dims=DIMS), ea.create(PAIRS[peer], dims=DIMS)
    shape = ea.Shape(2, 3, 3, n, n, 16, 24)
    drawn = ours.sample(shape, generator=torch.Generator().manual_seed(n))
    assert drawn.v is not None
    results = []
    for attn in (theirs, ours):
        leaves = {name: x.clone().requires_grad_() for name, x in drawn.inputs.items()}
        q, k, v = (x.clone().requires_grad_() for x in (drawn.q, drawn.k, drawn.v))
        out = attn(q, k, v, CAUSAL, **leaves)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        results.append([out, *torch.autograd.grad((out * weights).sum(), [q, k, v, *leaves.values()])])
    for mine, other in zip(*results, strict=True):
        assert (mine - other).norm() <= 3e-5 * other.norm() + 1e-6


def test_forms_that_the_library_lacks_are_refused() -> None:
    with pytest.raises(ea.UnsupportedError, match="form recurrent, not chunk"):
        ea.create("peer_gla:form=chunk", dims=DIMS)
    with pytest.raises(ea.UnsupportedError, match="form chunk, not recurrent"):
        ea.create("peer_gated_delta_rule:form=recurrent", dims=DIMS)
