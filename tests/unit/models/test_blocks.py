"""Blocks with checkpoints: the same numbers and gradients, and less that is kept for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from efficient_attn.contract.decode_state import state_bytes
from efficient_attn.models import blocks
from efficient_attn.models.config import Config
from efficient_attn.models.stacks import Decoder, Encoder, EncoderDecoder

SIZES: dict[str, Any] = {"d_model": 16, "heads": 4, "layers": 3, "max_len": 32}


def encoder(**more: Any) -> Encoder:
    return Encoder(Config(**SIZES, **more)).double()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("spec", ["full", "full:backend=dense", "sliding_window:window=3", "linear", "reformer"])
def test_outputs_and_gradients_are_the_same(spec: str, norm: str) -> None:
    x, found = torch.randn(2, 12, 16, dtype=torch.float64, requires_grad=True), []
    for checkpointed in (False, True):
        model = encoder(attention=spec, norm=norm, convolution=3, checkpointed=checkpointed)
        out = model(x)
        found.append([out, *torch.autograd.grad(out.cos().sum(), [x, *model.parameters()], allow_unused=True)])
    for plain, checked in zip(*found, strict=True):
        torch.testing.assert_close(checked, plain, rtol=0, atol=1e-12)


def test_decoders_and_their_contexts_are_the_same() -> None:
    tokens, found = torch.randint(9, (2, 8)), []
    for checkpointed in (False, True):
        model = EncoderDecoder(
            Config(**SIZES, checkpointed=checkpointed), source_vocab=9, target_vocab=9, cross="full"
        ).double()
        loss = model(tokens, tokens).cos().sum()
        found.append([loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)])
    for plain, checked in zip(*found, strict=True):
        torch.testing.assert_close(checked, plain, rtol=0, atol=1e-12)


def test_what_is_dropped_is_the_same_when_worked_out_again() -> None:
    x, found = torch.randn(2, 12, 16, dtype=torch.float64, requires_grad=True), []
    for checkpointed in (False, True):
        model = encoder(dropout=0.5, checkpointed=checkpointed).train()
        torch.manual_seed(5)
        found.append(torch.autograd.grad(model(x).cos().sum(), x)[0])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)


def kept(model: Encoder, x: Tensor) -> int:
    """Numbers that are kept for gradients, counted once each."""
    storages: dict[int, Tensor] = {}  # held, so that no storage takes another one's place

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.data_ptr()] = tensor
        return tensor

    weights = {p.data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x)
    return sum(tensor.numel() for at, tensor in storages.items() if at not in weights)


def test_far_less_is_kept() -> None:
    x = torch.randn(2, 32, 16, dtype=torch.float64, requires_grad=True)
    plain, checked = (kept(encoder(checkpointed=checkpointed), x) for checkpointed in (False, True))
    assert checked < plain / 8


def test_without_gradients_nothing_is_worked_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    mix = blocks.Block._mix
    monkeypatch.setattr(blocks.Block, "_mix", lambda self, *given: calls.append(1) or mix(self, *given))
    x, model = torch.randn(1, 4, 16, dtype=torch.float64), encoder(checkpointed=True)
    with torch.no_grad():
        model(x)
    assert len(calls) == 3
    model(x).sum().backward()
    assert len(calls) == 3 + 2 * 3


def test_steps_need_no_checkpoints() -> None:
    model = Decoder(Config(**SIZES, checkpointed=True), vocab=9).double().eval()
    tokens = torch.randint(9, (1, 6))
    whole, state, rows = model(tokens), model.init_state(1), []
    for token in tokens.split(1, 1):
        out, state = model.step(token, state)
        rows.append(out)
    torch.testing.assert_close(torch.cat(rows, 1), whole, rtol=0, atol=1e-12)


def test_a_state_keeps_of_a_prompt_no_more_than_the_convolution_reads() -> None:
    """A view of what came before would keep all of it."""
    config = Config(d_model=8, heads=2, layers=1, attention="linear", convolution=3, positions=None)
    model, sizes = Decoder(config, vocab=5), []
    for length in (3, 300):
        _, state = model.step(torch.zeros(1, length, dtype=torch.int64), model.init_state(1, 400))
        sizes.append(state_bytes(state))
    assert sizes[0] == sizes[1]
