"""`ea.attention`, the function call."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import efficient_attn as ea
from efficient_attn.registry import entries
from efficient_attn.registry.call import _create


def tensors(heads: int = 4, kv_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = ((2, heads, 9, 8), (2, kv_heads, 9, 8), (2, kv_heads, 9, 8))
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64) for s in shapes)
    return q, k, v


@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_scaled_dot_product_attention(causal: bool) -> None:
    q, k, v = tensors()
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert torch.allclose(ea.attention(q, k, v, is_causal=causal), want, atol=1e-12)


def test_attention_supports_options_backends_masks_and_groups() -> None:
    q, k, v = tensors(kv_heads=2)
    mask = ea.Mask(causal=True, key_lengths=torch.tensor([9, 4]))
    got = ea.attention(q, k, v, variant="sliding_window", window=3, mask=mask)
    want = ea.create("sliding_window:window=3:backend=dense")(q, k, v, mask)
    assert torch.allclose(got, want, atol=1e-12)
    assert torch.allclose(ea.attention(q, k, v, variant="sliding_window:window=3", backend="dense", mask=mask), want)


@pytest.mark.parametrize("variant", ["full", "sliding_window:window=3", "linear"])
def test_packed_sequences_equal_separate_calls(variant: str) -> None:
    q, k, v = (x[:1] for x in tensors())
    ends = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    got = ea.attention(q, k, v, variant=variant, is_causal=True, cu_seqlens=ends)
    alone = [
        ea.attention(q[:, :, s], k[:, :, s], v[:, :, s], variant=variant, is_causal=True)
        for s in (slice(4), slice(4, 9))
    ]
    assert torch.allclose(got, torch.cat(alone, 2), atol=1e-12)


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "first", ["ea.create('full')", "ea.Attention", "import efficient_attn.contract.mechanism", "ea.attention"]
)
def test_attention_is_a_function_in_any_import_order(first: str) -> None:
    """A submodule of the same name must not replace the function when it is imported."""
    code = f"import efficient_attn as ea; {first}; from efficient_attn.contract.mechanism import Shape"
    code += "; assert callable(ea.attention); from efficient_attn import attention; assert attention is ea.attention"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_equal_calls_share_an_instance() -> None:
    _create.cache_clear()
    for _ in range(3):
        ea.attention(*tensors(), variant="linear")
    assert _create.cache_info().misses == 1


def test_dropout_equals_torchs() -> None:
    q, k, v = tensors()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        got = ea.attention(q, k, v, dropout_p=0.5, is_causal=True)
        torch.manual_seed(5)
        want = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=True)
    assert torch.equal(got, want)
    assert not torch.equal(got, ea.attention(q, k, v, is_causal=True))


def test_calls_without_keys_give_zeros() -> None:
    q, k, v = tensors()
    assert ea.attention(q, k[:, :, :0], v[:, :, :0]).abs().max() == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"is_causal": True, "mask": ea.Mask()}, ea.UsageError, "give either is_causal or a mask"),
        ({"cu_seqlens": torch.tensor([0, 9]), "mask": ea.Mask()}, ea.UsageError, "give either cu_seqlens or a mask"),
        ({"variant": "ful"}, ea.UsageError, "did you mean 'full'"),
        ({"window": 3}, ea.UsageError, "full: unknown option 'window'"),
        ({"gate": torch.ones(1)}, ea.UsageError, r"takes the inputs \[\], got \['gate'\]"),
        ({"dropout_p": 1.5}, ea.UsageError, "full: dropout is a probability from 0 to 1, not 1.5"),
        ({"variant": "linear", "dropout_p": 0.1}, ea.UnsupportedError, "linear: .* do not claim dropout"),
        ({"backend": "magic"}, ea.UnsupportedError, "no backend 'magic'"),
    ],
)
def test_invalid_arguments_are_reported(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ea.attention(*tensors(), **arguments)  # pyright: ignore[reportArgumentType]


def test_learned_mechanisms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_registrations", dict(entries._registrations))
    monkeypatch.setattr(entries, "_loaded_plugins", dict(entries._loaded_plugins))

    @ea.register("learned_once", family="full")
    class Learned(ea.SoftmaxAttention):
        """Has a parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

    with pytest.raises(ea.UnsupportedError, match="learned_once has learned parameters: create it with"):
        ea.attention(*tensors(), variant="learned_once")
