"""Haystacks: their needles and depths, their length, and answers that only the needles determine."""

from __future__ import annotations

import re

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.integrations.haystacks import (
    FAMILIES,
    N_ANSWERS,
    N_KEYS,
    N_NEEDLES,
    QUESTION_PREFIX,
    Haystack,
    NeedleFamily,
    Question,
    make_haystack,
)
from efficient_attn.integrations.texts import Text

HAY = "The honorable gentlemen of both houses have considered number {} with great care, and they agree."
TEXT = Text("mine", tuple(" ".join(HAY.format(1000 * d + i) for i in range(200)) for d in range(5)))
KNOWN = list(FAMILIES)


def count(text: str) -> int:
    return len(text.split())


def make(family: NeedleFamily = "single", number: int = 0, length: int = 900, text: Text = TEXT) -> Haystack:
    return make_haystack(text, number, family=family, length=length, count=count)


def right_answers(question: Question) -> set[str]:
    return {question.answers[i] for i in question.right}


def said_of(question: str, text: str) -> str:
    """The end of the text's sentence that begins as the question does."""
    (end,) = re.findall(re.escape(question.removeprefix(QUESTION_PREFIX)) + r" ([^.]+)\.", text, re.IGNORECASE)
    return end


@pytest.mark.parametrize("family", KNOWN)
def test_a_haystack_fits_and_is_nearly_full(family: NeedleFamily) -> None:
    made = make(family)
    whole = max(count(made.text + q.text + answer) for q in made.questions for answer in q.answers)
    assert 900 - count(HAY) - 5 <= whole <= 900
    assert len(made.questions) == (N_KEYS if family == "multi_value" else N_NEEDLES)
    assert all(len(set(q.answers) - right_answers(q)) == N_ANSWERS - 1 for q in made.questions)
    assert all(
        len(set(q.answers)) == len(q.answers) and all(a.startswith(" ") for a in q.answers) for q in made.questions
    )


@pytest.mark.parametrize("family", KNOWN)
def test_needles_lie_between_sentences_at_even_depths(family: NeedleFamily) -> None:
    made = make(family)
    sentences = [x for x in re.split(r"(?<=\.) ", made.text) if not x.startswith("The honorable")]
    assert len(sentences) == {"single": 20, "multi_value": 16, "variables": 20}.get(family, 10)
    depths = sorted(depth for q in made.questions for depth in q.depths)
    assert all(0 < depth < 1 for depth in depths)
    if family != "variables":  # of which only the values' depths are in questions
        assert [int(depth * len(depths)) for depth in depths] == list(range(len(depths)))
    if family in ("single", "multi_key"):
        for question in made.questions:
            at = made.text.lower().index(question.text.removeprefix(QUESTION_PREFIX).lower())
            assert at / len(made.text) == pytest.approx(question.depths[0], abs=0.06)


def test_wrong_answers_to_single_needles_are_said_of_other_things() -> None:
    made = make("single")
    for question in made.questions:
        right = question.answers[question.right[0]]
        assert said_of(question.text, made.text) == right.strip()
        said = [x for x in question.answers if re.search(rf" {x.strip()}\.", made.text)]
        assert len(said) == 2  # the right one, and that of another subject
        assert right in said
    assert len({question.text for question in made.questions}) == N_NEEDLES


def test_distractors_precede_and_follow_the_needles() -> None:
    """A needle that always came first, or last, could be found without its subject."""
    ranks = set[int]()
    for number in range(5):
        made = make("single", number)
        for question in made.questions:
            at = sorted(made.text.find(f"{answer}.") for answer in question.answers if f"{answer}." in made.text)
            ranks.add(at.index(made.text.find(f"{question.answers[question.right[0]]}.")))
    assert ranks == {0, 1}


def test_all_values_of_a_key_are_right() -> None:
    made = make("multi_value")
    for question in made.questions:
        key = re.escape(question.text.removeprefix(QUESTION_PREFIX))
        said = re.findall(rf"{key} (\w+)\.", made.text, re.IGNORECASE)
        assert [answer.strip() for answer in (question.answers[i] for i in question.right)] == said
        wrong = set(question.answers) - right_answers(question)
        assert all(re.search(rf" is{answer}\.", made.text) for answer in wrong)
        for value, depth in zip(said, question.depths, strict=True):
            assert made.text.index(f" {value}.") / len(made.text) == pytest.approx(depth, abs=0.06)


def test_questions_alone_have_the_same_words() -> None:
    made = make("multi_key")
    alone = made.drop_text()
    assert [alone.text + q.text for q in alone.questions] == [q.text for q in made.questions]
    assert alone.text == "\n\n"
    assert [q.answers for q in alone.questions] == [q.answers for q in made.questions]


def test_words_of_the_text_are_not_answers() -> None:
    painted = Text("mine", tuple(d.replace("great care", "purple orange piano Berlin care") for d in TEXT.documents))
    answers = {a.strip() for i in range(3) for q in make("single", i, text=painted).questions for a in q.answers}
    assert not answers & {"purple", "orange", "piano", "Berlin"}


def test_multi_key_answers_are_the_values_of_all_keys() -> None:
    made = make("multi_key")
    values = {q.answers[q.right[0]] for q in made.questions}
    assert all(set(q.answers) == values for q in made.questions)
    assert len(values) == N_NEEDLES
    for question in made.questions:
        assert right_answers(question) == {f" {said_of(question.text, made.text)}"}


def test_variables_lead_to_their_values() -> None:
    made = make("variables")
    for question in made.questions:
        other = said_of(question.text, made.text).removeprefix("that of ")
        value = said_of(f"the secret word of {other} is", made.text)
        assert right_answers(question) == {f" {value}"}
        at = made.text.index(f"of {other} is {value}") / len(made.text)
        assert at == pytest.approx(question.depths[0], abs=0.05)


def test_the_most_frequent_word_of_a_list_is_right() -> None:
    made = make("words")
    for question in made.questions:
        person = question.text.rpartition("the ")[2].removesuffix(" is")
        (listed,) = re.findall(rf"The list of the {person} is: ([^.]+)\.", made.text)
        words = listed.split(", ")
        assert right_answers(question) == {f" {max(set(words), key=words.count)}"}
        assert {f" {word}" for word in words} == set(question.answers)


def test_a_number_determines_the_haystack() -> None:
    assert make(number=1) == make(number=1)
    one, other = make(number=0), make(number=1)
    assert one.text[:40] != other.text[:40] or one.text != other.text
    assert [q.answers for q in one.questions] != [q.answers for q in other.questions]
    depths = [[q.depths for q in make("single", i).questions] for i in range(2)]
    assert depths[0] != depths[1]


def test_lengths_that_do_not_fit_are_reported() -> None:
    with pytest.raises(UsageError, match="mine has 5 documents of 900 tokens; haystack 6"):
        make(number=5)
    with pytest.raises(UsageError, match="mine has 0 documents of 9000 tokens; haystack 1"):
        make(length=9000)
    with pytest.raises(UsageError, match="seq_len 130 is too short: needles and a question take"):
        make("single", length=130)
    from efficient_attn.integrations.haystacks import WORDS

    wordy = Text("wordy", tuple(f"{d} {' '.join(WORDS[3:])}." for d in (x[:9000] for x in TEXT.documents)))
    with pytest.raises(UsageError, match="contains too many of the words"):
        make("multi_key", length=700, text=wordy)
