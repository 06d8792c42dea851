"""Recurrent sequence to sequence: compared with a naive loop, padding, generation, and invalid arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.models.seq2seq import Seq2Seq

WIDTH = 6


def make(how: Any) -> Any:
    model = Seq2Seq(source_vocab=7, target_vocab=9, width=WIDTH, attention=how, seed=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.double()


def gru_cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
    (r, z, n), (r_, z_, n_) = (w @ x + b).chunk(3), (u @ h + c).chunk(3)
    r, z = (r + r_).sigmoid(), (z + z_).sigmoid()
    return (1 - z) * (n + r * n_).tanh() + z * h


def encode(model: Any, words: Tensor) -> tuple[Tensor, Tensor]:
    """One row for each word of a source, and the writer's initial state."""
    x, sides, lasts = model.sources.weight[words], [], []
    for end in ("", "_reverse"):
        weights = [
            getattr(model.reader, f"{name}_l0{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        h, rows = torch.zeros(WIDTH, dtype=x.dtype), []
        for word in x.flip(0) if end else x:
            h = gru_cell(word, h, *weights)
            rows.append(h)
        lasts.append(h)
        sides.append(torch.stack(rows).flip(0) if end else torch.stack(rows))
    return torch.cat(sides, 1), (model.bridge.weight @ torch.cat(lasts) + model.bridge.bias).tanh()


def attend(model: Any, state: Tensor, rows: Tensor) -> Tensor:
    keys = rows @ model.keys.weight.T
    if model.how == "bahdanau":
        attn = model.attn
        scores = [attn.u[0] @ (attn.w_q[0] @ state + attn.w_k[0] @ key).tanh() for key in keys]
    else:
        scores = [state @ model.attn.form[0] @ key for key in keys]
    return torch.stack(scores).softmax(0) @ rows


def reference(model: Any, source: Tensor, target: Tensor) -> Tensor:
    rows, state = encode(model, source)
    logits = []
    weights = [getattr(model.writer, name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    for word in target:
        x = model.targets.weight[word]
        if model.how == "bahdanau":
            x = torch.cat([x, attend(model, state, rows)])
        state = gru_cell(x, state, *weights)
        features = state
        if model.how == "luong":
            features = (model.join.weight @ torch.cat([state, attend(model, state, rows)])).tanh()
        logits.append(model.head.weight @ features + model.head.bias)
    return torch.stack(logits)


@pytest.mark.parametrize("how", [None, "bahdanau", "luong"])
def test_outputs_and_gradients_equal_the_naive_loop(how: Any) -> None:
    model, source, target = make(how), torch.randint(7, (2, 5)), torch.randint(9, (2, 4))
    lengths = torch.tensor([5, 3])
    got = model(source, target, lengths)
    want = torch.stack([reference(model, source[b, : lengths[b]], target[b]) for b in range(2)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.autograd.grad(out.cos().sum(), parameters, allow_unused=True) for out in (got, want)]
    for name, actual, expected in zip(dict(model.named_parameters()), *gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("how", [None, "bahdanau", "luong"])
def test_generated_tokens_are_the_argmax(how: Any) -> None:
    model, source = make(how), torch.randint(7, (2, 5))
    written = model.generate(source, begin=1, steps=4)
    inputs = torch.cat([torch.ones(2, 1, dtype=torch.long), written[:, :-1]], 1)
    assert torch.equal(model(source, inputs).argmax(-1), written)


def test_luong_attention_can_use_other_mechanisms() -> None:
    model = Seq2Seq(source_vocab=7, target_vocab=9, width=8, attention="luong", variant="linear")
    assert model(torch.randint(7, (2, 5)), torch.randint(9, (2, 3))).shape == (2, 3, 9)


def test_a_window_moves_with_each_token() -> None:
    """Local-m of Luong et al. 2015: token t sees the encoded rows around t."""
    spec = "luong_local:window=1:position=own"
    model = Seq2Seq(source_vocab=7, target_vocab=9, width=8, attention="luong", variant=spec)
    read, state = model.read(torch.randint(7, (1, 9)))
    for position in range(8):
        is_read = []
        for row in range(9):
            changed = read.rows.clone()
            changed[:, row] += 1.0
            both = (replace(read, rows=rows) for rows in (changed, read.rows))
            got, want = (model.write(torch.tensor([0]), state, x, position)[0] for x in both)
            is_read.append(not torch.allclose(got, want))
        assert is_read == [abs(row - position) <= 1 for row in range(9)]


def test_invalid_arguments_are_reported() -> None:
    with pytest.raises(ea.UsageError, match="bahdanau, luong or None, got 'keras'"):
        Seq2Seq(source_vocab=2, target_vocab=2, attention="keras")  # pyright: ignore
    with pytest.raises(ea.UsageError, match="at least 1"):
        Seq2Seq(source_vocab=0, target_vocab=2)
    with pytest.raises(ea.UsageError, match="token 7 is outside of a vocabulary of 7"):
        make(None)(torch.tensor([[7]]), torch.tensor([[1]]))
