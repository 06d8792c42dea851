"""DSA: the indexer's selection, equal scores, gathered keys, and steps that read only the selected ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.budget import Budget
from efficient_attn.kernels.indexer import score_keys, select_exactly
from efficient_attn.peers.hosting import load_fla_operations
from efficient_attn.variants.selected.dsa import DSA

CAUSAL = ea.Mask(causal=True)


def draw(n: int, m: int, *, index_heads: int = 3, index_dim: int = 5) -> tuple[list[Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(n + m)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    index_q, index_w = normal(2, 1, n, index_heads, index_dim), normal(2, 1, n, index_heads)
    inputs = {"index_q": index_q, "index_w": index_w, "index_k": normal(2, 1, m, index_dim)}
    return [normal(2, 4, n, 16), normal(2, 2, m, 16), normal(2, 2, m, 12)], inputs


def define(q: Tensor, k: Tensor, v: Tensor, inputs: dict[str, Tensor], topk: int, valid: Tensor) -> Tensor:
    """Query by query."""
    out, offset = q.new_zeros(*q.shape[:3], v.shape[3]), k.shape[2] - q.shape[2]
    for b in range(2):
        for row in range(q.shape[2]):
            keys = [j for j in range(row + offset + 1) if valid[b, j]]
            products = (inputs["index_k"][b, 0, keys] @ inputs["index_q"][b, 0, row].T).clamp(min=0)
            scores = (products @ inputs["index_w"][b, 0, row]).tolist()
            best = [j for _, j in sorted(zip(scores, keys, strict=True), key=lambda pair: (-pair[0], pair[1]))][:topk]
            for h in range(4 * bool(best)):
                weights = (k[b, h // 2, best] @ q[b, h, row] / 4).softmax(0)
                out[b, h, row] = weights @ v[b, h // 2, best]
    return out


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (90, 90), (7, 170)])
@pytest.mark.parametrize("topk", [1, 2, 8, 200])  # one of 170 keys is gathered
def test_the_result_is_the_papers(topk: int, n: int, m: int, holes: bool) -> None:
    (q, k, v), inputs = draw(n, m)
    valid = torch.rand(2, m, generator=torch.Generator().manual_seed(1)) < (0.6 if holes else 2)
    valid[:, 0] = True
    attn = ea.create("dsa", topk=topk, index_heads=3, index_dim=5)
    got = attn(q, k, v, ea.Mask(causal=True, key_mask=valid) if holes else CAUSAL, **inputs)
    torch.testing.assert_close(got, define(q, k, v, inputs, topk, valid), rtol=0, atol=1e-12)


def test_gathered_keys_have_the_gradients_of_the_reference() -> None:
    (q, k, v), inputs = draw(250, 250)
    results = []
    for backend in ("keys", "dense"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        attn = ea.create("dsa:topk=1:index_heads=3:index_dim=5", backend=backend)
        results.append(torch.autograd.grad(attn(*leaves, CAUSAL, **inputs).sin().sum(), leaves))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


def test_of_equal_scores_the_first_are_selected() -> None:
    """ReLU makes many scores exactly 0."""
    scores = torch.tensor([[0.0, 2, 0, 0, 1, 0, 3]]).expand(2, 1, 7)
    visible = torch.tensor([[True] * 7, [False, True, True, True, False, True, True]])[:, None]
    got = select_exactly(scores, visible, 4)
    assert got[:, 0].tolist() == [
        [True, True, False, False, True, False, True],
        [False, True, True, True, False, False, True],
    ]


def test_the_indexer_is_that_of_flash_linear_attention() -> None:
    pytest.importorskip("einops")
    fla = load_fla_operations("dsa", "dsa")
    _, inputs = draw(80, 80)
    queries, weights, keys = (inputs[name][:, 0].float() for name in ("index_q", "index_w", "index_k"))
    want = fla.naive_dsa_indexer(queries, keys, weights, topk=70, activation="relu")
    visible = torch.ones(80, 80, dtype=torch.bool).tril()[None]
    scores = score_keys(queries, weights, keys)
    got = select_exactly(scores, visible, 70)
    for b in range(2):
        for row in range(80):
            theirs = want[b, row][want[b, row] >= 0]
            assert len(theirs) == int(got[b, row].sum())
            # theirs picks any of equal scores
            mine, other = scores[b, row, got[b, row]].sort().values, scores[b, row, theirs].sort().values
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_all_keys_are_full_attention() -> None:
    (q, k, v), inputs = draw(200, 200)
    got = ea.create("dsa:topk=200:index_heads=3:index_dim=5")(q, k, v, CAUSAL, **inputs)
    torch.testing.assert_close(got, ea.create("full")(q, k, v, CAUSAL), rtol=0, atol=1e-12)


def test_steps_read_only_the_selected_keys() -> None:
    """Other keys and values are NaN, and no output is."""
    (q, k, v), inputs = draw(64, 64)
    attn = ea.create("dsa:topk=5:index_heads=3:index_dim=5")
    state = attn.init_state(2, 64, torch.float64)
    before, last = ({name: x[:, :, part] for name, x in inputs.items()} for part in (slice(63), slice(63, 64)))
    _, state = attn.step(q[:, :, :63], k[:, :, :63], v[:, :, :63], state, **before)
    scores = score_keys(last["index_q"][:, 0], last["index_w"][:, 0], inputs["index_k"][:, 0])
    selection = select_exactly(scores, torch.ones(1, 1, 64, dtype=torch.bool), 5)[:, 0]
    want, _ = attn.step(q[:, :, 63:], k[:, :, 63:], v[:, :, 63:], state, **last)
    assert state.keys is not None
    for rows in (state.keys, state.values):
        rows[:, :, :63].masked_fill_(~selection[:, None, :63, None], float("nan"))
    got, _ = attn.step(q[:, :, 63:], k[:, :, 63:], v[:, :, 63:], state, **last)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_budgets_bad_options_and_missing_inputs() -> None:
    assert DSA.fit(Budget(keys=100, length=1000, head_dim=64, causal=True)) == {"topk": 100}
    assert ea.create("dsa:topk=3").pairs(5, 5, True) == 1 + 2 + 3 + 3 + 3
    for spec in ("dsa:topk=0", "dsa:index_heads=0", "dsa:index_dim=-2"):
        with pytest.raises(ea.UsageError, match=r"dsa: .* must be at least 1"):
            ea.create(spec)
    (q, k, v), _ = draw(5, 5)
    with pytest.raises(ea.UsageError, match="dsa takes the inputs"):
        ea.create("dsa")(q, k, v, CAUSAL)
