"""Generation: compared with recomputation, prompts of several lengths, sampling, and invalid arguments."""

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
    torch.nn.init.normal_(model.head.weight)  # clear argmax
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
def test_generated_tokens_equal_recomputation(attention: str, positions: str) -> None:
    model, prompt = make(attention, positions=positions), torch.randint(VOCAB, (3, 7))
    assert torch.equal(generate(model, prompt, 30), recompute(model, prompt, 30))  # pyright: ignore


@pytest.mark.parametrize("attention", ["linear", "retention", "additive", "cosine", "luong_local:window=4"])
def test_generated_tokens_equal_recomputation_for_other_states(attention: str) -> None:
    model, prompt = make(attention), torch.randint(VOCAB, (2, 5))
    assert torch.equal(generate(model, prompt, 20), recompute(model, prompt, 20))  # pyright: ignore


def test_prompts_of_several_lengths_equal_separate_generation() -> None:
    model = make()
    prompts = [torch.randint(VOCAB, (n,)) for n in (5, 3, 5, 9)]
    for prompt, tokens in zip(prompts, generate(model, prompts, 8), strict=True):
        assert torch.equal(tokens, generate(model, prompt[None], 8)[0])


MIXED = [torch.arange(n) % VOCAB for n in (5, 3, 5, 9, 1)]


@pytest.mark.parametrize("positions", ["rotary", "alibi", "sinusoidal", "binary", "learned", None])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_positions_are_counted_for_each_prompt(positions: Any, norm: Any) -> None:
    model = make(positions=positions, norm=norm)
    for prompt, tokens in zip(MIXED, generate(model, MIXED, 12), strict=True):
        assert torch.equal(tokens, recompute(model, prompt[None], 12)[0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "attention",
    [
        *("gqa:kv_heads=2", "cosine", "sliding_window:window=3", "linear", "retention"),
        *("attention_sinks:window=4:n_sink=2", "fixed:stride=3:summary=1", ("linear", "sliding_window:window=2")),
    ],
)
@pytest.mark.parametrize("convolution", [0, 3])
def test_mechanisms_generate_each_prompt_as_separately(attention: Any, convolution: int) -> None:
    model = make(attention, convolution=convolution)
    for block in model.layers:
        if block.convolution is not None:
            torch.nn.init.normal_(block.convolution.weight, std=0.3)
    for prompt, tokens in zip(MIXED, generate(model, MIXED, 12), strict=True):
        assert torch.equal(tokens, recompute(model, prompt[None], 12)[0])


@pytest.mark.parametrize(
    ("attention", "batches"),
    [("full", 1), ("linear", 1), ("fixed:stride=4:summary=1", 1), (("full", "fixed:stride=4:summary=1"), 1)],
)
def test_prompts_share_a_batch_if_all_layers_support_it(attention: Any, batches: int, monkeypatch: Any) -> None:
    model, shapes = make(attention), []
    step = model.step
    monkeypatch.setattr(model, "step", lambda tokens, state: (shapes.append(tokens.shape), step(tokens, state))[1])
    generate(model, MIXED, 1)
    assert len(shapes) == batches


def test_sampled_tokens_equal_sampling_from_recomputed_logits() -> None:
    """One generator samples all rows in order, from the logits of separately recomputed prompts."""
    for attention in ("full", "sliding_window:window=3", "linear"):
        model, draw = make(attention), Draw(temperature=0.7, top_k=5, seed=3)
        generator, rows = torch.Generator().manual_seed(3), list(MIXED)
        for _ in range(10):
            with torch.no_grad():
                logits = torch.stack([model(row[None])[0, -1] for row in rows])
            rows = [torch.cat([row, new[None]]) for row, new in zip(rows, draw.take(logits, generator), strict=True)]
        for row, prompt, tokens in zip(rows, MIXED, generate(model, MIXED, 10, draw=draw), strict=True):
            assert torch.equal(row[len(prompt) :], tokens)


def test_samples_follow_the_probabilities_and_the_seed() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -50.0]]).expand(4000, -1)
    for draw, probabilities in (
        (Draw(temperature=1), logits[0].softmax(-1)),
        (Draw(temperature=2), (logits[0] / 2).softmax(-1)),
        (Draw(temperature=1, top_k=2), torch.tensor([*logits[0, :2].softmax(-1), 0, 0])),
    ):
        frequencies = torch.bincount(draw.take(logits, torch.Generator().manual_seed(0)), minlength=4) / 4000
        torch.testing.assert_close(frequencies, probabilities, rtol=0, atol=0.03)
    model, prompt = make(), torch.randint(VOCAB, (2, 5))
    first, same, other = (generate(model, prompt, 20, draw=Draw(temperature=1, seed=s)) for s in (1, 1, 2))
    assert torch.equal(first, same)  # pyright: ignore
    assert not torch.equal(first, other)  # pyright: ignore


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: generate(make(), torch.zeros(1, 0, dtype=torch.long), 3), "needs a prompt"),
        (lambda: generate(make(), [torch.zeros(n, dtype=torch.long) for n in (0, 2)], 3), "needs a prompt"),
        (lambda: generate(make(), torch.zeros(1, 3, dtype=torch.long), 0), "a prompt and a step, got"),
        (lambda: generate(make(), torch.zeros(1, 60, dtype=torch.long), 5), "beyond max_len=64"),
        (lambda: Draw(temperature=-1), "temperature must not be below 0"),
        (lambda: Draw(top_k=0), "top_k must be at least 1"),
    ],
)
def test_invalid_arguments_are_reported(run: Any, message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        run()


def test_mechanisms_that_cannot_decode_are_reported() -> None:
    with pytest.raises(
        ea.UnsupportedError, match=r"Decoder.step needs a mechanism that decodes step by step; reformer"
    ):
        generate(make("reformer:bucket_size=4"), torch.zeros(1, 3, dtype=torch.long), 2)
