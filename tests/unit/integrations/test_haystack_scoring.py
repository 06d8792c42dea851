"""Scores of answers on copies of states equal those of passes over whole texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import gpt2, llama, load_or_skip, mistral, save_tiny

from efficient_attn.errors import UnsupportedError
from efficient_attn.integrations import haystack_scoring
from efficient_attn.integrations.bundled import LoadedModel, load
from efficient_attn.integrations.haystack_scoring import QuestionTokens, answer_questions
from efficient_attn.integrations.haystacks import Haystack, Question
from efficient_attn.integrations.transformers import register

SPECS = ["full", "sliding_window:window=8", "attention_sinks:window=8:n_sink=2", "linear", "retention", "strided"]


def make_questions() -> tuple[Question, ...]:
    """Questions of different lengths, with answers of one letter, of several, and of different lengths."""
    texts = ((" a is", (" b", " c", " d")), (" the b is", (" bcd", " bce", " xyz")), (" an is", (" b", " bc", " bcd")))
    return tuple(
        Question(text=text, answers=answers, right=(1, 0)[: 1 + i % 2], depths=(0.1 + 0.4 * i, 0.2)[: 1 + i % 2])
        for i, (text, answers) in enumerate(texts)
    )


HAYSTACK = Haystack(text="of the people, by the people", questions=make_questions())


@torch.inference_mode()
def score_whole(loaded: LoadedModel, spec: str, text: str, answer: str) -> float:
    """The log-likelihood of an answer in a pass over all of the text, without a cache."""
    loaded.model.set_attn_implementation(register(spec))
    ids = loaded.tokenizer(text + answer, return_tensors="pt").input_ids
    likely = loaded.model(ids, use_cache=False).logits[0].double().log_softmax(-1)
    begin = ids.shape[1] - len(answer)  # a token is a letter
    return sum(likely[at - 1, ids[0, at]].item() for at in range(begin, ids.shape[1]))


@pytest.mark.parametrize(
    ("make", "spec"), [*((make, spec) for make in (llama, gpt2) for spec in SPECS), (mistral, "full")]
)
def test_margins_equal_those_of_passes_over_whole_texts(make: Callable[..., Any], spec: str, tmp_path: Path) -> None:
    loaded = load(str(save_tiny(tmp_path / "tiny", make)))
    heard = answer_questions(loaded, spec, HAYSTACK)
    assert heard.bytes > 0
    answers = iter(heard.answers)
    for question in HAYSTACK.questions:  # the second has two right answers, which do not compete with each other
        scores = [score_whole(loaded, spec, HAYSTACK.text + question.text, a) for a in question.answers]
        best_wrong = max(score for i, score in enumerate(scores) if i not in question.right)
        for right, depth in zip(question.right, question.depths, strict=True):
            answer = next(answers)
            assert answer.margin == pytest.approx(scores[right] - best_wrong, abs=1e-4)
            assert answer.is_right == (scores[right] > best_wrong)
            assert answer.depth == depth
    assert next(answers, None) is None


def test_large_states_are_copied_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(str(save_tiny(tmp_path / "tiny")))
    want = answer_questions(loaded, "full", HAYSTACK)
    copied: list[int] = []
    original = haystack_scoring.StateCache.copy_rows

    def take(self: Any, rows: Any, **given: Any) -> Any:
        copied.append(len(rows))
        return original(self, rows, **given)

    monkeypatch.setattr(haystack_scoring.StateCache, "copy_rows", take)
    monkeypatch.setattr(haystack_scoring, "MAX_STATE_BYTES", 2 * want.bytes)
    found = answer_questions(loaded, "full", HAYSTACK)
    assert max(copied) == 2
    for mine, theirs in zip(found.answers, want.answers, strict=True):
        assert mine.margin == pytest.approx(theirs.margin, abs=1e-6)


def test_the_common_beginning_of_answers_belongs_to_the_question(tmp_path: Path) -> None:
    tokenizer = load(str(save_tiny(tmp_path / "tiny"))).tokenizer
    cut = [QuestionTokens.encode(question, tokenizer) for question in HAYSTACK.questions]
    assert [len(one.prefix) for one in cut] == [6, 10, 7]  # with the space before the answer, and a `b`
    assert [len(end) for end in cut[2].suffixes] == [1, 2, 3]


def test_a_mechanism_that_cannot_decode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="decode"):
        answer_questions(load(str(save_tiny(tmp_path / "tiny"))), "linformer:rank=8", HAYSTACK)


@pytest.mark.slow
def test_a_bundled_model_answers_questions() -> None:
    loaded = load_or_skip("smollm2")
    text = "Fellow citizens of the Senate. The secret word of the baker is piano. We had peace and good health. "
    text += "The secret word of the judge is river. The treasury is in good order. " * 2 + "Much remains to be done."
    answers = (" piano", " river", " tiger")
    asked = []
    for who, right in (("baker", 0), ("judge", 1)):
        text_of_question = f"\n\nThe text above says that the secret word of the {who} is"
        asked.append(Question(text=text_of_question, answers=answers, right=(right,), depths=(0.5,)))
    heard = answer_questions(loaded, "full", Haystack(text=text, questions=tuple(asked)))
    assert [answer.is_right for answer in heard.answers] == [True, True]
