"""Blocks with checkpoints: equal outputs and gradients, and less saved memory."""

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


def encoder(**options: Any) -> Encoder:
    return Encoder(Config(**SIZES, **options)).double()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("spec", ["full", "full:backend=dense", "sliding_window:window=3", "linear", "reformer"])
def test_checkpointed_outputs_and_gradients_are_equal(spec: str, norm: str) -> None:
    x, results = torch.randn(2, 12, 16, dtype=torch.float64, requires_grad=True), []
    for checkpointed in (False, True):
        model = encoder(attention=spec, norm=norm, convolution=3, checkpointed=checkpointed)
        out = model(x)
        results.append([out, *torch.autograd.grad(out.cos().sum(), [x, *model.parameters()], allow_unused=True)])
    for plain, checkpointed in zip(*results, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=0, atol=1e-12)


def test_checkpointed_decoders_with_contexts_are_equal() -> None:
    tokens, results = torch.randint(9, (2, 8)), []
    for checkpointed in (False, True):
        model = EncoderDecoder(
            Config(**SIZES, checkpointed=checkpointed), source_vocab=9, target_vocab=9, cross="full"
        ).double()
        loss = model(tokens, tokens).cos().sum()
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)])
    for plain, checkpointed in zip(*results, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=0, atol=1e-12)


def test_recomputation_repeats_the_dropout_mask() -> None:
    x, results = torch.randn(2, 12, 16, dtype=torch.float64, requires_grad=True), []
    for checkpointed in (False, True):
        model = encoder(dropout=0.5, checkpointed=checkpointed).train()
        torch.manual_seed(5)
        results.append(torch.autograd.grad(model(x).cos().sum(), x)[0])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [2, 4])
def test_short_convolution_equals_torchs(width: int) -> None:
    convolution = blocks.ShortConvolution(width, 6, seed=1).double()
    x = torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True)
    inputs = torch.nn.functional.pad(x.mT, (width - 1, 0))
    want = x + torch.nn.functional.conv1d(inputs, convolution.weight, groups=6).mT
    sources = x, convolution.weight
    for got in (convolution(x), convolution(x, x.new_zeros(3, width - 1, 6))):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        gradients = [torch.autograd.grad(out.cos().sum(), sources, retain_graph=True) for out in (got, want)]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    torch.testing.assert_close(convolution(x[:, 3:], x[:, 3 - width + 1 : 3]), want[:, 3:], rtol=0, atol=1e-12)


def count_saved(model: Encoder, x: Tensor) -> int:
    """The number of elements saved for gradients, each storage once."""
    storages: dict[int, Tensor] = {}  # references, so that no address is reused

    def save(tensor: Tensor) -> Tensor:
        storages[tensor.data_ptr()] = tensor
        return tensor

    weights = {p.data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        model(x)
    return sum(tensor.numel() for address, tensor in storages.items() if address not in weights)


def test_checkpoints_save_less_for_gradients() -> None:
    x = torch.randn(2, 32, 16, dtype=torch.float64, requires_grad=True)
    plain, with_checkpoints = (count_saved(encoder(checkpointed=checkpointed), x) for checkpointed in (False, True))
    assert with_checkpoints < plain / 8


def test_without_gradients_blocks_are_not_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    mix = blocks.Block._mix
    monkeypatch.setattr(blocks.Block, "_mix", lambda self, *args: calls.append(1) or mix(self, *args))
    x, model = torch.randn(1, 4, 16, dtype=torch.float64), encoder(checkpointed=True)
    with torch.no_grad():
        model(x)
    assert len(calls) == 3
    model(x).sum().backward()
    assert len(calls) == 3 + 2 * 3


def test_steps_of_checkpointed_decoders_equal_the_forward_pass() -> None:
    model = Decoder(Config(**SIZES, checkpointed=True), vocab=9).double().eval()
    tokens = torch.randint(9, (1, 6))
    whole, state, rows = model(tokens), model.init_state(1), []
    for token in tokens.split(1, 1):
        out, state = model.step(token, state)
        rows.append(out)
    torch.testing.assert_close(torch.cat(rows, 1), whole, rtol=0, atol=1e-12)


def test_convolution_states_do_not_keep_the_prompt() -> None:
    """A view of the prompt would keep all of it."""
    config = Config(d_model=8, heads=2, layers=1, attention="linear", convolution=3, positions=None)
    model, sizes = Decoder(config, vocab=5), []
    for length in (3, 300):
        _, state = model.step(torch.zeros(1, length, dtype=torch.int64), model.init_state(1, 400))
        sizes.append(state_bytes(state))
    assert sizes[0] == sizes[1]
