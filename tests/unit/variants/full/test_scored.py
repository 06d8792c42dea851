"""Exact attention with other scores: formulas, transformed keys in states, parameters, and invalid options."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.variants.full.scored import ScoredAttention

HEADS, GROUPS, WIDTH, VALUE = 4, 2, 6, 5
DIMS = ea.Dims(heads=HEADS, kv_heads=GROUPS, head_dim=WIDTH, value_dim=VALUE)
Score = Callable[[Any, int, Tensor, Tensor], Tensor]  # of a query and a key of a key-value head

SCORES: dict[str, Score] = {
    "dot": lambda attn, h, q, k: q @ k,
    "general": lambda attn, h, q, k: q @ attn.form[h] @ k,
    "cosine": lambda attn, h, q, k: attn.temperature[h] * (q @ k) / (q.norm() * k.norm()),
    "additive": lambda attn, h, q, k: attn.u[h] @ (attn.w_q[h] @ q + attn.w_k[h] @ k).tanh(),
    "additive:hidden=9": lambda attn, h, q, k: attn.u[h] @ (attn.w_q[h] @ q + attn.w_k[h] @ k).tanh(),
}


def make(spec: str, backend: str | None = None) -> Any:
    attn = ea.create(spec, dims=DIMS, seed=3, backend=backend).double()
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.mul_(1 + torch.rand(parameter.shape, dtype=torch.float64))  # not the initial values
    return attn


def draw(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (2, HEADS, n, WIDTH), (2, GROUPS, m, WIDTH), (2, GROUPS, m, VALUE)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return q, k, v


def reference(attn: Any, score: Score, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The formula, in a loop over heads and queries."""
    n, m = q.shape[2], k.shape[2]
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    for b in range(len(q)):
        for h in range(HEADS):
            group = h // (HEADS // GROUPS)
            for i in range(n):
                seen = m - n + i + 1 if causal else m
                scores = torch.stack([score(attn, group, q[b, h, i], k[b, group, j]) for j in range(seen)])
                out[b, h, i] = scores.softmax(0) @ v[b, group, :seen]
    return out


@pytest.mark.parametrize("spec", SCORES)
@pytest.mark.parametrize("causal", [False, True])
def test_outputs_of_all_backends_equal_the_formula(spec: str, causal: bool) -> None:
    q, k, v = draw(4, 7)
    others = ea.SoftmaxAttention.only_on  # C++ may not be built, and kernels of GPUs
    for backend in ea.info(spec.partition(":")[0]).backends:
        if backend in others:
            continue
        attn = make(spec, backend)
        want = reference(attn, SCORES[spec], q, k, v, causal)
        torch.testing.assert_close(attn(q, k, v, ea.Mask(causal=causal)), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", SCORES)
def test_steps_transform_each_key_once(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attn, lengths = make(spec), []
    transform_keys = type(attn).transform_keys
    monkeypatch.setattr(
        type(attn), "transform_keys", lambda self, k: lengths.append(k.shape[2]) or transform_keys(self, k)
    )
    q, k, v = draw(9, 9)
    state = attn.init_state(2, 9, torch.float64)
    rows = []
    for part in (slice(0, 5), slice(5, 6), slice(6, 9)):
        out, state = attn.step(q[:, :, part], k[:, :, part], v[:, :, part], state)
        rows.append(out)
    assert lengths == [5, 1, 3]
    torch.testing.assert_close(torch.cat(rows, 2), attn(q, k, v, ea.Mask(causal=True)), rtol=0, atol=1e-12)


def test_dot_is_full_attention_without_scaling() -> None:
    q, k, v = draw(5, 5)
    full = ea.create("full", dims=DIMS)(q * math.sqrt(WIDTH), k, v)
    torch.testing.assert_close(make("dot")(q, k, v), full)


def test_cosine_ignores_the_norms_of_queries_and_keys() -> None:
    q, k, v = draw(5, 5)
    attn = make("cosine")
    torch.testing.assert_close(attn(q * 1e-3, k * 1e5, v), attn(q, k, v))
    assert attn(q * 0, k, v).isfinite().all()


def test_cosine_of_zero_queries_has_finite_gradients() -> None:
    q, k, v = draw(5, 5)
    q = (q * 0).requires_grad_()
    make("cosine")(q, k, v).sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("spec", ["general", "cosine", "additive"])
def test_parameters_depend_on_the_seed_and_have_gradients(spec: str) -> None:
    attn, same, other = (ea.create(spec, dims=DIMS, seed=seed) for seed in (1, 1, 2))
    for name, parameter in attn.named_parameters():
        assert parameter.shape[0] == GROUPS
        torch.testing.assert_close(parameter, same.get_parameter(name), rtol=0, atol=0)
        assert spec == "cosine" or not torch.equal(parameter, other.get_parameter(name))
    q, k, v = (x.float() for x in draw(6, 6))
    attn(q, k, v).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in attn.parameters())


def test_initial_general_scores_have_unit_variance() -> None:
    dims = ea.Dims(heads=64, head_dim=64)
    attn: Any = ea.create("general", dims=dims, seed=0)
    q, k = torch.randn(2, 1, 64, 200, 64)
    assert attn.score(q, k).var().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("spec", "dims", "message"),
    [
        ("general", ea.Dims(), "kv_heads or heads"),
        ("general", ea.Dims(heads=2), "head_dim"),
        ("cosine", ea.Dims(head_dim=4), "kv_heads or heads"),
        ("additive", ea.Dims(heads=2), "head_dim"),
        ("additive:hidden=0", DIMS, "hidden must be at least 1"),
    ],
)
def test_invalid_dims_and_options_are_reported(spec: str, dims: ea.Dims, message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        ea.create(spec, dims=dims)


def test_a_subclass_without_a_score_is_refused() -> None:
    class Nothing(ScoredAttention):
        pass

    with pytest.raises(ea.UnsupportedError, match="Nothing has no score"):
        Nothing.made_from(ea.create("full").origin, backend="dense")(*draw(3, 3))
