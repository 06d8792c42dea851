"""Mask tensors of four dimensions: recognized, or used as a bias."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import bert, llama, make_ids
from torch import Tensor

import efficient_attn as ea
from efficient_attn.errors import UnsupportedError
from efficient_attn.integrations.mask_tensors import describe_tensor_mask

N = 24
ROWS, KEYS = torch.arange(N)[:, None], torch.arange(N)


def _list_masks() -> dict[str, Tensor]:
    """Which keys each query sees, ``[2, 1, N, N]``."""
    left, right = torch.ones(2, 2, 1, 1, N, dtype=torch.bool)
    left[1, ..., :5] = right[1, ..., 17:] = False
    everything = torch.ones(2, 1, N, N, dtype=torch.bool)
    return {
        "all": everything,
        "causal": everything & (KEYS <= ROWS),
        "causal, left": (KEYS <= ROWS) & left,
        "causal, right": (KEYS <= ROWS) & right,
        "window": everything & (KEYS <= ROWS) & (KEYS > ROWS - 6),
        "window, left": (KEYS <= ROWS) & (KEYS > ROWS - 6) & left,
        "both sides": everything & ((ROWS - KEYS).abs() <= 4),
        "right": everything & right,
        "prefix": everything & ((KEYS <= ROWS) | (KEYS < 7)),
        "sequences": everything & (KEYS <= ROWS) & (ROWS // 8 == KEYS // 8),
        "random": (torch.rand(2, 1, N, N, generator=torch.Generator().manual_seed(0)) < 0.5) | (ROWS == KEYS),
    }


RECOGNIZED = {"all", "causal", "causal, left", "causal, right", "window", "window, left", "both sides", "right"}


@pytest.mark.parametrize("name", _list_masks())
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_any_mask_gives_the_models_own_logits(name: str, kind: str) -> None:
    torch.manual_seed(0)
    visible = _list_masks()[name]
    numbers = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    model = llama().eval()
    model.set_attn_implementation("eager")  # which adds numbers only
    mask = visible if kind == "bool" else numbers
    with torch.no_grad():
        want = model(make_ids(2, N), attention_mask=numbers).logits
        with ea.swap(model, "full"):
            found = model(make_ids(2, N), attention_mask=mask).logits
    rows = visible[:, 0].any(-1)
    torch.testing.assert_close(found[rows], want[rows], rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", _list_masks())
def test_causality_padding_and_windows_are_recognized(name: str) -> None:
    visible = _list_masks()[name]
    mask = describe_tensor_mask(visible, 2, "Layer")
    assert (mask.bias is None) == (name in RECOGNIZED)
    if name in RECOGNIZED:
        assert mask.mask.causal == ("causal" in name or name.startswith("window"))
        assert mask.window == {"window": 6, "window, left": 6, "both sides": 8}.get(name)
        valid = mask.mask.key_valid(N)
        assert (valid is None) == ("left" not in name and "right" not in name)


def test_a_recognized_mask_serves_every_mechanism_and_another_one_exact_attention() -> None:
    masks = _list_masks()
    for name in ("causal", "causal, right", "prefix"):
        model = llama().eval()
        with ea.swap(model, "linear"), torch.no_grad():
            if name == "prefix":
                with pytest.raises(UnsupportedError, match="linear: this model's scores have a bias of scores"):
                    model(make_ids(2, N), attention_mask=masks[name])
                continue
            padding = masks[name][:, 0, -1].long()
            want = model(make_ids(2, N), attention_mask=padding).logits
            found = model(make_ids(2, N), attention_mask=masks[name]).logits
            torch.testing.assert_close(found[padding.bool()], want[padding.bool()], rtol=0, atol=2e-6)


def test_one_mask_for_a_batch_and_one_for_each_head() -> None:
    visible = _list_masks()["causal, left"][1:]
    mask = describe_tensor_mask(visible, 3, "Layer").mask
    valid: Any = mask.key_valid(N)
    assert valid.shape == (3, N)
    by_head = visible.expand(1, 4, N, N).clone()
    assert describe_tensor_mask(by_head, 1, "Layer").bias is None
    by_head[0, 2, 20, 6] = False
    assert describe_tensor_mask(by_head, 1, "Layer").bias is not None


def test_an_encoder_takes_a_mask_of_four_dimensions() -> None:
    torch.manual_seed(0)
    model = bert().eval()
    visible = _list_masks()["right"]
    with torch.no_grad():
        want = model(make_ids(2, N), attention_mask=visible[:, 0, 0].long())[0]
        with ea.swap(model, "linear"):
            by_padding = model(make_ids(2, N), attention_mask=visible[:, 0, 0].long())[0]
            by_tensor = model(make_ids(2, N), attention_mask=visible)[0]
        torch.testing.assert_close(by_tensor[visible[:, 0, 0]], by_padding[visible[:, 0, 0]], rtol=0, atol=2e-6)
        assert (want - by_padding).abs().max() > 1e-4


def test_other_shapes_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"was given a mask tensor \[2, 3, 4\]; give the model a padding mask"):
        describe_tensor_mask(torch.zeros(2, 3, 4), 2, "Layer")
