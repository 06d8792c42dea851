"""flex_attention compiled on the CPU: block masks contain our patterns' pairs, and unsupported calls are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import tiny_suites
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.patterns import Geometry

OURS = {
    "peer_flex_sliding_window:window=150": "sliding_window:window=150",
    "peer_flex_longformer:n_global=20:window=30": "longformer:n_global=20:window=30",
    "peer_flex_strided:stride=70": "strided:stride=70",
}


@pytest.fixture(autouse=True)
def _loaded() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        ea.load_plugin("efficient_attn.peers.flex")
        yield


def _draw(n: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(2, 3, n, 16, generator=generator, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("peer", "ours"), OURS.items())
def test_its_block_mask_contains_our_pairs(peer: str, ours: str, causal: bool) -> None:
    n, attn = 300, ea.create(peer)
    module = sys.modules[type(attn).__module__]
    mask = module._make_block_mask(attn.pattern, Geometry(n, n, 0, causal), torch.device("cpu"))
    i = torch.arange(n)
    pairs = mask.mask_mod(torch.tensor(0), torch.tensor(0), i[:, None], i).expand(n, n)
    blocks = mask.to_dense()[0, 0].bool().repeat_interleave(128, 0).repeat_interleave(128, 1)[:n, :n]
    assert not (pairs & ~blocks).any()
    assert int(pairs.sum()) == ea.create(ours).pairs(n, n, causal) == attn.pairs(n, n, causal)
    assert int(blocks.sum()) == attn.pairs_computed(n, n, causal)


@pytest.mark.slow
@pytest.mark.sampled(4)
def test_the_compiled_peer_equals_our_mechanism() -> None:
    (q, k, v), mask = _draw(130), ea.Mask(causal=True)
    got = ea.create("peer_flex_longformer:window=4:n_global=3")(q, k, v, mask)
    want = ea.create("longformer:window=4:n_global=3", backend="dense")(q, k, v, mask)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_unsupported_calls_on_cpus_are_refused() -> None:
    attn = ea.create("peer_flex_sliding_window")
    with pytest.raises(ea.UnsupportedError, match="has no gradient"):
        attn(*(x.requires_grad_() for x in _draw(8)))
    with pytest.raises(ea.UnsupportedError, match=r"not torch\.float64"):
        attn(*_draw(8, torch.float64))
    with pytest.raises(ea.UnsupportedError, match="shorter than a block, 128"):
        attn(*_draw(40))
    with pytest.raises(ea.UnsupportedError, match="padding"):
        attn(*_draw(8), ea.Mask(key_lengths=torch.tensor([3, 4])))


def test_only_the_library_compiles() -> None:
    assert ea.create("peer_flex_sliding_window").compiles
    assert not ea.create("peer_flex_sliding_window", backend="dense").compiles


@pytest.mark.parametrize("option", ["sliding_window:window=-1", "longformer:n_global=-1", "strided:stride=0"])
def test_options_out_of_range(option: str) -> None:
    with pytest.raises(ea.UsageError, match="must be"):
        ea.create(f"peer_flex_{option}")
