"""Passages of a text, and whether an encoder finds the continuation of each among those of others.

Encoders of sentences give similar embeddings to texts about the same things (Reimers & Gurevych, 2019,
arXiv:1908.10084). Each text of a set comes from another document, and is cut into two halves, which are encoded apart.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError
from ..spec import SpecLike
from .bundled import LoadedModel
from .haystack_scoring import HaystackResult, NeedleAnswer
from .haystacks import N_PASSAGES
from .observers import watch
from .texts import Text
from .transformers import register

BATCH = 16


def cut_passages(loaded_model: LoadedModel, text: Text, length: int, number: int) -> Tensor:
    """Halves ``[2, N_PASSAGES, length]`` of stretches from as many documents, with the model's tokens for the beginning
    and the end of a text; deterministic. Raises `UsageError` for a text with too few documents of that length."""
    rng, tokenizer = Random(number), loaded_model.tokenizer
    begin, end = ([token] if token is not None else [] for token in (tokenizer.cls_token_id, tokenizer.sep_token_id))
    n = length - len(begin) - len(end)
    halves: list[list[list[int]]] = [[], []]
    for document in rng.sample(text.documents, len(text.documents)):
        tokens = tokenizer(document, add_special_tokens=False, verbose=False).input_ids
        if len(tokens) < 2 * n:
            continue
        first = rng.randrange(len(tokens) - 2 * n + 1)
        for half, start in zip(halves, (first, first + n), strict=True):
            half.append([*begin, *tokens[start : start + n], *end])
        if len(halves[0]) == N_PASSAGES:
            return torch.tensor(halves)
    raise UsageError(f"--text {text.label}: {len(halves[0])} of its documents have {2 * n} tokens; needed {N_PASSAGES}")


def find_continuations(loaded_model: LoadedModel, spec: SpecLike, halves: Tensor, *, draw: int = 0) -> HaystackResult:
    """Let an encoder read the halves ``[2, n, N]`` with a mechanism, and find the second half of each first one.

    An embedding is the mean of the last hidden states, and the answer the second half with the largest cosine; margins
    are of cosines. draw: of a random mechanism, as for `register`. Raises `UsageError` for a model whose layers do not
    call the mechanism, and `UnsupportedError` for what that does not support.
    """
    model: Any = loaded_model.model
    model.set_attn_implementation(register(spec, draw=draw))
    with torch.inference_mode(), watch() as meter:
        rows = [model(batch).last_hidden_state.mean(1) for batch in halves.flatten(0, 1).split(BATCH)]
    meter.check(model, str(spec))
    return _find_nearest(torch.cat(rows))


def match_words(halves: Tensor) -> HaystackResult:
    """What the tokens of the halves tell without a model: the nearest second half by tf-idf weights."""
    tokens = halves.flatten(0, 1)
    counts = torch.zeros(len(tokens), int(tokens.max()) + 1, dtype=torch.float64)
    counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=torch.float64))
    n_texts_with = (counts > 0).sum(0).clamp(min=1)
    return _find_nearest(counts.log1p() * (len(tokens) / n_texts_with).log())


def _find_nearest(vectors: Tensor) -> HaystackResult:
    """For each of the first half of the vectors, whether its counterpart has the largest cosine of the second half."""
    queries, candidates = torch.nn.functional.normalize(vectors.double(), dim=1).chunk(2)
    cosines = queries @ candidates.T
    right = cosines.diagonal().clone()
    best_wrong = cosines.fill_diagonal_(-1).amax(1)
    return HaystackResult(answers=tuple(NeedleAnswer(margin=x) for x in (right - best_wrong).tolist()))
