"""Generation: what recomputing the prefix gives, prompts of several lengths, draws, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.models.config import Config
from efficient_attn.models.generate import Draw, generate
from efficient_attn.models.stacks import Decoder

VOCAB = 13


def make(attention: str = "full", **options: Any) -> Decoder:
    config = Config(d_model=16, heads=4, layers=2, attention=attention, max_len=64, **options)
    model = Decoder(config, vocab=VOCAB)
    torch.nn.init.normal_(model.head.weight)  # likeliest tokens that stand out
    return model.double()


def recompute(model: Decoder, prompt: Tensor, steps: int) -> Tensor:
    tokens = prompt
    for _ in range(steps):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    return tokens[:, prompt.shape[1] :]


@pytest.mark.parametrize("positions", ["rotary", "alibi", "sinusoidal"])
@pytest.mark.parametrize(
    "attention", ["full", "gqa:kv_heads=2", "sliding_window:window=5", "attention_sinks:window=4:n_sink=2"]
)
def test_it_is_token_by_token_what_recomputing_gives(attention: str, positions: str) -> None:
    model, prompt = make(attention, positions=positions), torch.randint(VOCAB, (3, 7))
    assert torch.equal(generate(model, prompt, 30), recompute(model, prompt, 30))  # pyright: ignore


@pytest.mark.parametrize("attention", ["linear", "retention", "additive", "cosine", "luong_local:window=4"])
def test_other_states_do_so_too(attention: str) -> None:
    model, prompt = make(attention), torch.randint(VOCAB, (2, 5))
    assert torch.equal(generate(model, prompt, 20), recompute(model, prompt, 20))  # pyright: ignore


def test_prompts_of_several_lengths_are_what_each_gives_alone() -> None:
    model = make()
    prompts = [torch.randint(VOCAB, (n,)) for n in (5, 3, 5, 9)]
    for prompt, found in zip(prompts, generate(model, prompts, 8), strict=True):
        assert torch.equal(found, generate(model, prompt[None], 8)[0])


MIXED = [torch.arange(n) % VOCAB for n in (5, 3, 5, 9, 1)]


@pytest.mark.parametrize("positions", ["rotary", "alibi", "sinusoidal", "binary", "learned", None])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_positions_are_each_rows_own(positions: Any, norm: Any) -> None:
    model = make(positions=positions, norm=norm)
    for prompt, found in zip(MIXED, generate(model, MIXED, 12), strict=True):
        assert torch.equal(found, recompute(model, prompt[None], 12)[0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "attention",
    [
        *("gqa:kv_heads=2", "cosine", "sliding_window:window=3", "linear", "retention"),
        *("attention_sinks:window=4:n_sink=2", ("linear", "sliding_window:window=2")),
    ],
)
@pytest.mark.parametrize("convolution", [0, 3])
def test_mechanisms_write_after_each_prompt_as_after_it_alone(attention: Any, convolution: int) -> None:
    model = make(attention, convolution=convolution)
    for block in model.layers:
        if block.convolution is not None:
            torch.nn.init.normal_(block.convolution.weight, std=0.3)
    for prompt, found in zip(MIXED, generate(model, MIXED, 12), strict=True):
        assert torch.equal(found, recompute(model, prompt[None], 12)[0])


@pytest.mark.parametrize(
    ("attention", "batches"),
    [("full", 1), ("linear", 1), ("fixed:stride=4:summary=1", 4), (("full", "fixed:stride=4:summary=1"), 4)],
)
def test_prompts_go_together_where_every_layer_can(attention: Any, batches: int, monkeypatch: Any) -> None:
    model, seen = make(attention), []
    step = model.step
    monkeypatch.setattr(model, "step", lambda tokens, state: (seen.append(tokens.shape), step(tokens, state))[1])
    generate(model, MIXED, 1)
    assert len(seen) == batches


def test_drawn_tokens_are_those_of_logits_that_each_prompt_has_alone() -> None:
    """One generator draws for all rows in turn, from the logits of prompts that are recomputed one by one."""
    for attention in ("full", "sliding_window:window=3", "linear"):
        model, draw = make(attention), Draw(temperature=0.7, top_k=5, seed=3)
        generator, rows = torch.Generator().manual_seed(3), list(MIXED)
        for _ in range(10):
            with torch.no_grad():
                logits = torch.stack([model(row[None])[0, -1] for row in rows])
            rows = [torch.cat([row, new[None]]) for row, new in zip(rows, draw.take(logits, generator), strict=True)]
        for row, prompt, found in zip(rows, MIXED, generate(model, MIXED, 10, draw=draw), strict=True):
            assert torch.equal(row[len(prompt) :], found)


def test_draws_follow_the_probabilities_and_the_seed() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -50.0]]).expand(4000, -1)
    for draw, wanted in (
        (Draw(temperature=1), logits[0].softmax(-1)),
        (Draw(temperature=2), (logits[0] / 2).softmax(-1)),
        (Draw(temperature=1, top_k=2), torch.tensor([*logits[0, :2].softmax(-1), 0, 0])),
    ):
        found = torch.bincount(draw.take(logits, torch.Generator().manual_seed(0)), minlength=4) / 4000
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.03)
    model, prompt = make(), torch.randint(VOCAB, (2, 5))
    one, same, other = (generate(model, prompt, 20, draw=Draw(temperature=1, seed=s)) for s in (1, 1, 2))
    assert torch.equal(one, same)  # pyright: ignore
    assert not torch.equal(one, other)  # pyright: ignore


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (lambda: generate(make(), torch.zeros(1, 0, dtype=torch.long), 3), "needs a prompt"),
        (lambda: generate(make(), [torch.zeros(n, dtype=torch.long) for n in (0, 2)], 3), "needs a prompt"),
        (lambda: generate(make(), torch.zeros(1, 3, dtype=torch.long), 0), "a step at least"),
        (lambda: generate(make(), torch.zeros(1, 60, dtype=torch.long), 5), "beyond max_len=64"),
        (lambda: Draw(temperature=-1), "temperature must not be below 0"),
        (lambda: Draw(top_k=0), "top_k must be at least 1"),
    ],
)
def test_what_does_not_fit_is_one_line(run: Any, what: str) -> None:
    with pytest.raises(ea.UsageError, match=what):
        run()


def test_who_cannot_decode_is_named() -> None:
    with pytest.raises(
        ea.UnsupportedError, match=r"Decoder.step needs a mechanism that decodes step by step; reformer"
    ):
        generate(make("reformer:bucket_size=4"), torch.zeros(1, 3, dtype=torch.long), 2)
