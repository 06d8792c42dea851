"""Exact attention by other scores: each is its formula, in every form, and states keep turned keys."""

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
Score = Callable[[Any, int, Tensor, Tensor], Tensor]  # of a key-value head's query and key

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
            parameter.mul_(1 + torch.rand(parameter.shape, dtype=torch.float64))  # not as they start
    return attn


def draw(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (2, HEADS, n, WIDTH), (2, GROUPS, m, WIDTH), (2, GROUPS, m, VALUE)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return q, k, v


def by_hand(attn: Any, score: Score, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """A head and a query at a time."""
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
def test_every_form_is_the_formula(spec: str, causal: bool) -> None:
    q, k, v = draw(4, 7)
    for backend in ea.info(spec.partition(":")[0]).backends:
        if backend == "cpp":
            continue
        attn = make(spec, backend)
        want = by_hand(attn, SCORES[spec], q, k, v, causal)
        torch.testing.assert_close(attn(q, k, v, ea.Mask(causal=causal)), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", SCORES)
def test_keys_are_turned_once_and_kept_so(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attn, turned = make(spec), []
    turn = type(attn).transform_keys
    monkeypatch.setattr(type(attn), "transform_keys", lambda self, k: turned.append(k.shape[2]) or turn(self, k))
    q, k, v = draw(9, 9)
    state = attn.init_state(2, 9, torch.float64)
    rows = []
    for at in (slice(0, 5), slice(5, 6), slice(6, 9)):
        out, state = attn.step(q[:, :, at], k[:, :, at], v[:, :, at], state)
        rows.append(out)
    assert turned == [5, 1, 3]
    torch.testing.assert_close(torch.cat(rows, 2), attn(q, k, v, ea.Mask(causal=True)), rtol=0, atol=1e-12)


def test_a_dot_product_times_the_root_of_the_width_is_not_scaled() -> None:
    q, k, v = draw(5, 5)
    full = ea.create("full", dims=DIMS)(q * math.sqrt(WIDTH), k, v)
    torch.testing.assert_close(make("dot")(q, k, v), full)


def test_no_length_of_queries_or_keys_changes_a_cosine() -> None:
    q, k, v = draw(5, 5)
    attn = make("cosine")
    torch.testing.assert_close(attn(q * 1e-3, k * 1e5, v), attn(q, k, v))
    assert attn(q * 0, k, v).isfinite().all()


def test_a_cosine_of_nothing_has_gradients() -> None:
    q, k, v = draw(5, 5)
    q = (q * 0).requires_grad_()
    make("cosine")(q, k, v).sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("spec", ["general", "cosine", "additive"])
def test_what_is_learned_is_a_function_of_the_seed_and_gets_a_gradient(spec: str) -> None:
    one, same, other = (ea.create(spec, dims=DIMS, seed=seed) for seed in (1, 1, 2))
    for name, parameter in one.named_parameters():
        assert parameter.shape[0] == GROUPS
        torch.testing.assert_close(parameter, same.get_parameter(name), rtol=0, atol=0)
        assert spec == "cosine" or not torch.equal(parameter, other.get_parameter(name))
    q, k, v = (x.float() for x in draw(6, 6))
    one(q, k, v).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in one.parameters())


def test_scores_of_unit_variance_start_with_unit_variance() -> None:
    dims = ea.Dims(heads=64, head_dim=64)
    attn: Any = ea.create("general", dims=dims, seed=0)
    q, k = torch.randn(2, 1, 64, 200, 64)
    assert attn.score(q, k).var().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("spec", "dims", "what"),
    [
        ("general", ea.Dims(), "kv_heads or heads"),
        ("general", ea.Dims(heads=2), "head_dim"),
        ("cosine", ea.Dims(head_dim=4), "kv_heads or heads"),
        ("additive", ea.Dims(heads=2), "head_dim"),
        ("additive:hidden=0", DIMS, "hidden must be at least 1"),
    ],
)
def test_what_does_not_fit_is_one_line(spec: str, dims: ea.Dims, what: str) -> None:
    with pytest.raises(ea.UsageError, match=what):
        ea.create(spec, dims=dims)


def test_a_score_has_to_be_given() -> None:
    class Nothing(ScoredAttention):
        pass

    with pytest.raises(ea.UnsupportedError, match="Nothing has no score"):
        Nothing.made_from(ea.create("full").origin, backend="dense")(*draw(3, 3))
