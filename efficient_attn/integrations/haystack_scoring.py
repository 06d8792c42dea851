"""Score a trained model's answers to questions about a text that it read with a mechanism.

The text is read once, into states. Each question continues from a copy of them, and if answers are longer than a token,
each answer from a copy of the question's states, so that answers do not see each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from ..contract.decode_state import state_bytes
from ..spec import SpecLike
from .bundled import LoadedModel
from .haystacks import Haystack, Question
from .observers import watch
from .state_cache import StateCache
from .transformers import register

MAX_STATE_BYTES = 1 << 30  # of the copies of states in a batch of several rows


@dataclass(frozen=True, kw_only=True)
class NeedleAnswer:
    """How likely a right answer is. margin: its log-likelihood minus that of the best wrong answer, in nats. depth: of
    its needle in the text."""

    margin: float
    depth: float | None = None

    @property
    def is_right(self) -> bool:
        """Whether it is more likely than all wrong answers."""
        return self.margin > 0


@dataclass(frozen=True, kw_only=True)
class HaystackResult:
    """A text's right answers, as a model judges them. bytes: of a decoder's states, after the text."""

    answers: tuple[NeedleAnswer, ...]
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionTokens:
    """A question as tokens. prefix: the question, with the common beginning of all answers. suffixes: the remaining
    tokens of each answer, at least one."""

    prefix: tuple[int, ...]
    suffixes: tuple[tuple[int, ...], ...]

    @classmethod
    def encode(cls, question: Question, tokenizer: Any) -> QuestionTokens:
        """Tokenize the question with each of its answers."""
        options = {"add_special_tokens": False, "verbose": False}
        sequences = [tuple(tokenizer(question.text + answer, **options).input_ids) for answer in question.answers]
        n_common = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*sequences, strict=False)))
        # at least the last token of an answer with which others begin is a suffix
        n_prefix = min(n_common, min(map(len, sequences)) - 1)
        return cls(prefix=sequences[0][:n_prefix], suffixes=tuple(tokens[n_prefix:] for tokens in sequences))


def answer_questions(loaded_model: LoadedModel, spec: SpecLike, haystack: Haystack, *, draw: int = 0) -> HaystackResult:
    """Let a model read a text with a mechanism in all layers, and answer its questions.

    An answer's likelihood is the product over its tokens. draw: of a random mechanism, as for `register`. Raises
    `UnsupportedError` for a mechanism that cannot decode, and `UsageError` for a model whose layers do not call it.
    """
    model = loaded_model.model
    model.set_attn_implementation(register(spec, draw=draw))
    tokens = loaded_model.tokenizer(haystack.text, return_tensors="pt", verbose=False).input_ids
    encoded = [QuestionTokens.encode(question, loaded_model.tokenizer) for question in haystack.questions]
    n_question_tokens = max(len(entry.prefix) + max(map(len, entry.suffixes)) for entry in encoded)
    cache = StateCache(model, max_len=tokens.shape[1] + n_question_tokens)
    with torch.inference_mode():
        with watch() as meter:
            model.base_model(tokens, past_key_values=cache, use_cache=True)  # without logits, which are not needed
        meter.check(model, str(spec))
        size = state_bytes(cache.states)
        batch_size = max(1, MAX_STATE_BYTES // size)
        scores: dict[int, list[float]] = {}
        for block in _group_by_length([len(entry.prefix) for entry in encoded], batch_size):
            scores |= zip(block, _score_answers(model, cache, [encoded[i] for i in block], batch_size), strict=True)
    answers = []
    for i, question in enumerate(haystack.questions):
        best_wrong = max(score for index, score in enumerate(scores[i]) if index not in question.right)
        for right, depth in zip(question.right, question.depths, strict=True):
            answers.append(NeedleAnswer(depth=depth, margin=scores[i][right] - best_wrong))
    return HaystackResult(answers=tuple(answers), bytes=size)


def _group_by_length(lengths: Sequence[int], max_size: int) -> Iterator[list[int]]:
    """The indices of questions of one length, in batches: states do not support padding."""
    for length in dict.fromkeys(lengths):
        indices = [i for i, other_length in enumerate(lengths) if other_length == length]
        yield from (indices[start : start + max_size] for start in range(0, len(indices), max_size))


def _score_answers(
    model: Any, haystack_cache: StateCache, questions: Sequence[QuestionTokens], batch_size: int
) -> Iterator[list[float]]:
    """The log-likelihoods of each question's answers; the questions have one length."""
    cache = haystack_cache.copy_rows([0] * len(questions))
    prefixes = torch.tensor([question.prefix for question in questions])
    prefix_log_probs = model(prefixes, past_key_values=cache, use_cache=True).logits[:, -1].float().log_softmax(-1)
    for row, question in enumerate(questions):
        scores = prefix_log_probs[row][[suffix[0] for suffix in question.suffixes]].double()
        if any(len(suffix) > 1 for suffix in question.suffixes):
            suffix_scores = []
            for start in range(0, len(question.suffixes), batch_size):
                suffixes = question.suffixes[start : start + batch_size]
                copies = cache.copy_rows([row] * len(suffixes), batch=len(questions))
                suffix_scores.append(_score_suffixes(model, copies, suffixes))
            scores = scores + torch.cat(suffix_scores)
        yield scores.tolist()


def _score_suffixes(model: Any, cache: StateCache, suffixes: Sequence[Sequence[int]]) -> Tensor:
    """The log-likelihood of each suffix's tokens after the first. Short suffixes are padded on the right."""
    width = max(map(len, suffixes))
    tokens = torch.tensor([[*suffix, *[suffix[-1]] * (width - len(suffix))] for suffix in suffixes])
    log_probs = model(tokens[:, :-1], past_key_values=cache, use_cache=True).logits.double().log_softmax(-1)
    scores = log_probs.gather(-1, tokens[:, 1:, None])[..., 0]
    within = torch.arange(1, width) < torch.tensor([len(suffix) for suffix in suffixes])[:, None]
    return (scores * within).sum(-1)
