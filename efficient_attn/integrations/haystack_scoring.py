"""Questions to a trained model about a haystack that it read with a mechanism: which of ten answers is the most likely.

The haystack is read once, into states. Each question goes on from a copy of them, and where the answers are longer than
a token, each answer from a copy of the question's. So no answer is ever read before another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from ..contract.decode_state import state_bytes
from .bundled import Loaded
from .haystacks import Haystack, Question
from .state_cache import StateCache
from .transformers import register, watch

AT_ONCE = 1 << 30  # bytes of states that are copied together, if more than one row has


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a question. margin: nats by which the right answer is more likely than the best wrong one."""

    depth: float
    margin: float

    @property
    def is_right(self) -> bool:
        return self.margin > 0


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A model's answers to a haystack's questions. bytes: of all states, once it has read the haystack."""

    answers: tuple[Answer, ...]
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A question as tokens. begin: what all of its answers begin with, at least the question. ends: what is left of
    each answer, a token or more."""

    begin: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]

    @classmethod
    def cut(cls, question: Question, tokenizer: Any) -> Tokens:
        given = {"add_special_tokens": False, "verbose": False}
        whole = [tuple(tokenizer(question.text + answer, **given).input_ids) for answer in question.answers]
        alike = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*whole, strict=False)))
        begin = min(alike, min(map(len, whole)) - 1)  # an answer that another one begins with keeps its last token
        return cls(begin=whole[0][:begin], ends=tuple(tokens[begin:] for tokens in whole))

    @property
    def longest(self) -> int:
        return len(self.begin) + max(map(len, self.ends))


def ask(loaded: Loaded, spec: str, haystack: Haystack) -> Heard:
    """Let a model read a haystack with a mechanism in all layers, and answer its questions.

    An answer's likelihood is the product over its tokens. Raises `UnsupportedError` for a mechanism that cannot decode,
    and `UsageError` for a model whose layers do not ask for it.
    """
    model = loaded.model
    model.set_attn_implementation(register(spec))
    tokens = loaded.tokenizer(haystack.text, return_tensors="pt", verbose=False).input_ids
    asked = [Tokens.cut(question, loaded.tokenizer) for question in haystack.questions]
    read = StateCache(model, max_len=tokens.shape[1] + max(one.longest for one in asked))
    with torch.inference_mode():
        with watch() as meter:
            model.base_model(tokens, past_key_values=read, use_cache=True)  # without logits, which nobody asks for
        meter.check(model, spec)
        size = state_bytes(read.states)
        together = max(1, AT_ONCE // size)
        found: dict[int, list[float]] = {}
        for block in _group([len(one.begin) for one in asked], together):
            found |= dict(zip(block, _score(model, read, [asked[i] for i in block], together), strict=True))
    answers = tuple(
        Answer(depth=q.depth, margin=_find_margin(found[i], q.right)) for i, q in enumerate(haystack.questions)
    )
    return Heard(answers=answers, bytes=size)


def _group(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """The numbers of questions of one length, so many at once at most: states have no padding."""
    for length in dict.fromkeys(lengths):
        alike = [i for i, other in enumerate(lengths) if other == length]
        yield from (alike[at : at + most] for at in range(0, len(alike), most))


def _score(model: Any, read: StateCache, asked: Sequence[Tokens], together: int) -> Iterator[list[float]]:
    """The log-likelihoods of each question's answers; the questions are of one length."""
    cache = read.take([0] * len(asked))
    begins = torch.tensor([one.begin for one in asked])
    first = model(begins, past_key_values=cache, use_cache=True).logits[:, -1].float().log_softmax(-1)
    for row, one in enumerate(asked):
        scores = first[row][[end[0] for end in one.ends]].double()
        if any(len(end) > 1 for end in one.ends):
            blocks = [one.ends[at : at + together] for at in range(0, len(one.ends), together)]
            later = [_score_ends(model, cache.take([row] * len(ends), batch=len(asked)), ends) for ends in blocks]
            scores = scores + torch.cat(later)
        yield scores.tolist()


def _score_ends(model: Any, cache: StateCache, ends: Sequence[Sequence[int]]) -> Tensor:
    """The log-likelihood of each end's tokens after the first. What fills up short ends comes after them, unseen."""
    wide = max(map(len, ends))
    tokens = torch.tensor([[*end, *[end[-1]] * (wide - len(end))] for end in ends])
    likely = model(tokens[:, :-1], past_key_values=cache, use_cache=True).logits.double().log_softmax(-1)
    scores = likely.gather(-1, tokens[:, 1:, None])[..., 0]
    within = torch.arange(1, wide) < torch.tensor([len(end) for end in ends])[:, None]
    return (scores * within).sum(-1)


def _find_margin(scores: Sequence[float], right: int) -> float:
    return scores[right] - max(score for i, score in enumerate(scores) if i != right)
