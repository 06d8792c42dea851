"""Baselines: outputs and steps equal to their formulas, and published numbers of parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.layers.baselines import GRU, LSTM, LSTMN, Baseline, Convolution, Dense

WIDTH, LENGTH = 6, 9
LAYERS: dict[str, Callable[[], Baseline]] = {
    "gru": lambda: GRU(WIDTH, seed=1),
    "lstm": lambda: LSTM(WIDTH, seed=1),
    "lstmn": lambda: LSTMN(WIDTH, seed=1),
    "convolution": lambda: Convolution(WIDTH, kernel=3, seed=1),
    "wide convolution": lambda: Convolution(WIDTH, kernel=12, seed=1),
    "one position": lambda: Convolution(WIDTH, kernel=1, seed=1),
    "centred": lambda: Convolution(WIDTH, kernel=5, causal=False, seed=1),
    "dense": lambda: Dense(WIDTH, length=LENGTH, seed=1),
}


def draw(length: int = LENGTH) -> Tensor:
    return torch.randn(2, length, WIDTH, dtype=torch.float64)


def gru(layer: GRU, x: Tensor) -> Tensor:
    w, u, b, c = layer.cells.weight_ih_l0, layer.cells.weight_hh_l0, layer.cells.bias_ih_l0, layer.cells.bias_hh_l0
    h, rows = x.new_zeros(2, WIDTH), []
    for now in x.unbind(1):
        (r, z, n), (r_, z_, n_) = (now @ w.T + b).chunk(3, -1), (h @ u.T + c).chunk(3, -1)
        r, z = (r + r_).sigmoid(), (z + z_).sigmoid()
        h = (1 - z) * (n + r * n_).tanh() + z * h
        rows.append(h)
    return torch.stack(rows, 1)


def lstm(layer: LSTM, x: Tensor) -> Tensor:
    w, u, b, c = layer.cells.weight_ih_l0, layer.cells.weight_hh_l0, layer.cells.bias_ih_l0, layer.cells.bias_hh_l0
    h, memory, rows = x.new_zeros(2, WIDTH), x.new_zeros(2, WIDTH), []
    for now in x.unbind(1):
        i, f, g, o = (now @ w.T + b + h @ u.T + c).chunk(4, -1)
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        h = o.sigmoid() * memory.tanh()
        rows.append(h)
    return torch.stack(rows, 1)


def lstmn(layer: LSTMN, x: Tensor) -> Tensor:
    """The paper's equations, in loops over the batch and positions."""
    out = torch.zeros_like(x)
    for b in range(len(x)):
        hidden, memories, summary = [], [], x.new_zeros(WIDTH)
        for t in range(x.shape[1]):
            scores = [
                layer.score @ (layer.of_hidden @ h + layer.of_x @ x[b, t] + layer.of_summary @ summary).tanh()
                for h in hidden
            ]
            weights = torch.stack(scores).softmax(0) if scores else []
            summary, kept = x.new_zeros(WIDTH), x.new_zeros(WIDTH)
            for weight, h, memory in zip(weights, hidden, memories, strict=True):
                summary, kept = summary + weight * h, kept + weight * memory
            i, f, g, o = (layer.gates @ torch.cat([summary, x[b, t]]) + layer.bias).chunk(4)
            memories.append(f.sigmoid() * kept + i.sigmoid() * g.tanh())
            hidden.append(o.sigmoid() * memories[-1].tanh())
            out[b, t] = hidden[-1]
    return out


def convolution(layer: Convolution, x: Tensor) -> Tensor:
    out, shift = torch.zeros_like(x) + layer.bias, layer.kernel - 1 if layer.causal else layer.kernel // 2
    for t in range(x.shape[1]):
        for i in range(layer.kernel):
            if 0 <= t - shift + i < x.shape[1]:
                out[:, t] += x[:, t - shift + i] @ layer.weight[:, :, i].T
    return out


def dense(layer: Dense, x: Tensor) -> Tensor:
    weight = layer.weight.view(LENGTH, WIDTH, LENGTH, WIDTH)
    return torch.einsum("ndme,bme->bnd", weight, x) + layer.bias.view(LENGTH, WIDTH)


FORMULAS = {GRU: gru, LSTM: lstm, LSTMN: lstmn, Convolution: convolution, Dense: dense}


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_equal_the_formula(name: str) -> None:
    layer, x = LAYERS[name]().double(), draw().requires_grad_()
    inputs = x, *layer.parameters()
    outs = layer(x), FORMULAS[type(layer)](layer, x)  # pyright: ignore
    torch.testing.assert_close(*outs, rtol=0, atol=1e-12)
    for got, want in zip(*(torch.autograd.grad(out.cos().sum(), inputs) for out in outs), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, make in LAYERS.items() if make().causal])
def test_steps_equal_causal_rows(name: str) -> None:
    layer, x = LAYERS[name]().double(), draw()
    want, rows, state = layer(x), [], layer.init_state(2, LENGTH)
    state = state if state is None or not isinstance(state, Tensor) else state.double()
    for part in x.split([1, 4, 1, 3], 1):
        out, state = layer.step(part, state)
        rows.append(out)
    torch.testing.assert_close(torch.cat(rows, 1), want, rtol=0, atol=1e-12)
    changed = x.clone()
    changed[:, 5:] += 1
    torch.testing.assert_close(layer(changed)[:, :5], want[:, :5], rtol=0, atol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_equal_the_declared_cost(name: str) -> None:
    layer = LAYERS[name]()
    count = sum(p.numel() for part, p in layer.named_parameters() if "bias" not in part)
    assert count == layer.cost.parameters(LENGTH, WIDTH, WIDTH)


def test_cost_reports_sequential_steps() -> None:
    names = ("gru", "lstmn", "convolution", "dense")
    assert [LAYERS[name]().cost.sequential(100) for name in names] == [100, 100, 1, 1]


@pytest.mark.parametrize("name", LAYERS)
def test_equal_seeds_give_equal_layers_and_keep_torchs_rng_state(name: str) -> None:
    before = torch.get_rng_state()
    first, second = LAYERS[name](), LAYERS[name]()
    assert torch.equal(before, torch.get_rng_state())
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GRU(0), "d_model must be at least 1"),
        (lambda: Convolution(4, kernel=0), "kernel must be at least 1"),
        (lambda: Convolution(4, kernel=4, causal=False), "odd where it is centred"),
        (lambda: Dense(4, length=0), "length must be at least 1"),
        (lambda: Dense(4, length=3)(torch.zeros(1, 2, 4)), "made for 3 positions, got 2"),
        (lambda: LSTM(4)(torch.zeros(1, 2, 5)), r"x must be \[B, length, 4\], got \[1, 2, 5\]"),
    ],
)
def test_invalid_sizes_are_reported(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        make()


@pytest.mark.parametrize("name", ["centred", "dense"])
def test_layers_that_are_not_causal_refuse_steps(name: str) -> None:
    with pytest.raises(ea.UnsupportedError, match="sees later positions"):
        LAYERS[name]().init_state(1, 4)
