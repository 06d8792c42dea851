"""Texts with needles, and questions that can only be answered by finding a needle.

Five families, after RULER (Hsieh et al., 2024, arXiv:2404.06654). A question is the beginning of a sentence, completed
by an answer. A right answer is found if it is more likely than nine wrong ones, so that nothing is parsed, and chance
is one in ten.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from random import Random
from typing import Literal

from ..errors import UsageError
from .texts import Text

NeedleFamily = Literal["single", "multi_key", "multi_value", "variables", "words"]
CountTokens = Callable[[str], int]  # the number of tokens in a text

N_NEEDLES = 10  # in a haystack, each with a question, except for `multi_value`
N_ANSWERS = 10  # that are compared: a right one, and wrong ones
N_DISTRACTORS = 1  # of each needle of `single`; with three, SmolLM2-135M finds less than 90% at 1,024 tokens
N_PASSAGES = 32  # of a set for encoders (`passages`)
N_KEYS, N_VALUES = 4, 4  # of `multi_value`: keys, each with a question, and values of each
QUESTION_PREFIX = "\n\nThe text above says that "  # how questions begin
LETTERS_PER_TOKEN = 16  # more characters than any document has for each token


def _subjects(form: str, *names: str) -> tuple[str, ...]:
    return tuple(form.format(name) for name in names)


PEOPLE = (
    *("baker", "doctor", "painter", "farmer", "lawyer", "sailor", "teacher", "soldier", "singer", "tailor"),
    *("hunter", "dancer", "driver", "pilot", "nurse", "judge", "writer", "priest", "merchant", "gardener"),
)
# the beginnings of sentences about things of one kind, with their possible endings
SUBJECTS = {
    _subjects("the {} is", "door of the old house", "roof of the barn", "dress of the queen", "ball of the dog"): (
        "purple orange violet turquoise indigo silver pink brown yellow gray blue golden"
    ),
    _subjects("the animal {} is a", "in the kitchen", "on the roof", "behind the church", "near the well"): (
        "tiger rabbit dolphin monkey turtle camel shark donkey goat whale zebra penguin"
    ),
    _subjects("the {} is in", "best restaurant", "longest tunnel", "oldest library", "tallest tower"): (
        "Berlin Madrid Vienna Tokyo Rome Dublin Sydney Toronto Prague Lisbon Cairo Oslo Milan"
    ),
    _subjects("the instrument {} is a", "in the hall", "on the stage", "in the attic", "beside the bed"): (
        "piano guitar violin trumpet flute drum harp horn bass pipe bell keyboard"
    ),
    _subjects("the name of the {} is", "new cook", "old captain", "tall guard", "youngest sister"): (
        "Oliver Hannah Emily Lucas Sophie Clara Victor Julia Simon Alice Oscar Laura Peter"
    ),
    _subjects("the {} married", "daughter of the mayor", "sister of the butcher", "niece of the hermit"): (
        "Edward Walter Harold Frank Arthur Albert Ralph Howard Ernest Leonard Stanley Norman Gilbert"
    ),
    _subjects(
        "for {} were given", "dinner the guests", "lunch the workers", "breakfast the children", "supper the dogs"
    ): ("pizza soup pasta salad rice cake pie chicken cheese sushi curry steak"),
    _subjects("the {} reads a book about", "student", "widow", "poet", "landlord"): (
        "physics chemistry biology geography music astronomy algebra botany Latin poetry"
    ),
    _subjects("{} lies a", "in the drawer", "under the sofa", "behind the stove", "beside the lamp"): (
        "hammer knife rope broom needle brush candle pencil mirror bottle spoon ribbon"
    ),
    _subjects("the {} moved to", "shepherd", "chemist", "jeweler", "blacksmith"): (
        "London Munich Athens Warsaw Naples Venice Florence Zurich Hamburg Bombay Nairobi Montreal Geneva"
    ),
    _subjects("the {} is made of", "boat", "statue", "mask", "tiny box"): (
        "glass paper leather rubber plastic straw bamboo copper tin wax clay silk"
    ),
    _subjects("the {} came by", "twelfth guest", "bride", "magician", "ambassador's son"): (
        "train bicycle taxi tractor helicopter sled balloon truck bus plane canoe carriage"
    ),
}
WORDS = (
    *("apple", "river", "window", "candle", "mountain", "garden", "bridge", "horse", "silver", "bottle", "letter"),
    *("forest", "mirror", "castle", "pencil", "island", "bread", "summer", "engine", "button", "carpet", "whale"),
    *("guitar", "rocket", "lemon", "pepper", "blanket", "hammer", "spider", "tunnel", "tiger", "piano", "banana"),
    *("kitchen", "ladder", "needle", "orange", "potato", "rabbit", "shirt", "turtle", "violin", "zebra", "basket"),
)
FREQUENT_WORD_COUNT = 5  # occurrences of a list's most frequent word; the others occur once


@dataclass(frozen=True, kw_only=True)
class Question:
    """The beginning of a sentence, and ``answers`` that may complete it. right: the indices of correct answers. depths:
    of their needles in the text, from 0 to 1."""

    text: str
    answers: tuple[str, ...]
    right: tuple[int, ...]
    depths: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Haystack:
    """A text, and the questions to it."""

    text: str
    questions: tuple[Question, ...]

    def drop_text(self) -> Haystack:
        """The questions alone. A model reads at least something before them: the line breaks with which they begin."""
        rest = QUESTION_PREFIX.lstrip()
        breaks = QUESTION_PREFIX.removesuffix(rest)
        questions = tuple(replace(question, text=question.text.removeprefix(breaks)) for question in self.questions)
        return Haystack(text=breaks, questions=questions)


@dataclass(frozen=True, kw_only=True)
class Needle:
    """Sentences for a text, in order, and the question that they answer. right: the indices of correct answers, of
    which each has its own sentence. distractors: sentences that give other things the wrong answers."""

    sentences: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    right: tuple[int, ...]
    distractors: tuple[str, ...] = ()


def make_haystack(text: Text, number: int, *, family: NeedleFamily, length: int, count: CountTokens) -> Haystack:
    """A text of at most ``length`` tokens, including a question and its answer; deterministic.

    It consists of the first sentences of the ``number``-th document that is long enough, with needles between them at
    even depths. Raises `UsageError` if the text has too few such documents, and for a length that is too short for
    needles.
    """

    def fill(document: str) -> Haystack | None:
        beginning = document[: LETTERS_PER_TOKEN * length]
        return _fill_document(beginning, Random(f"{family} {number}"), family, length, count)

    return text.pick(number, length, fill, "haystack")  # a token has at least one character


def _fill_document(
    document: str, rng: Random, family: NeedleFamily, length: int, count: CountTokens
) -> Haystack | None:
    """The haystack of one document; None if that is too short."""
    hay = re.split(r"(?<=[.!?])\s+", " ".join(document.split()))
    needles = list(FAMILIES[family](rng, {word.lower() for word in re.findall(r"\w+", document)}))
    slots, inserted = _assign_slots(needles, rng)
    reserved = max(count(f"{QUESTION_PREFIX}{n.question} {answer}") for n in needles for answer in n.answers)
    lengths = range(len(hay) + 1)
    n_sentences = bisect_right(lengths, length - reserved, key=lambda n: count(_insert(hay[:n], inserted))) - 1
    if n_sentences == len(hay):
        return None
    n_inserted = reserved + count(" ".join(inserted))
    if 2 * n_inserted > length:
        needed = f"needles and a question take {n_inserted} tokens, and at least half must be text between them"
        raise UsageError(f"needles {family}: seq_len {length} is too short: {needed}")
    questions = []
    for n, needle_slots in zip(needles, slots, strict=True):
        answers = tuple(f" {answer}" for answer in n.answers)
        depths = tuple((slot + 0.5) / len(inserted) for slot in needle_slots[: len(n.right)])
        questions.append(Question(text=QUESTION_PREFIX + n.question, answers=answers, right=n.right, depths=depths))
    return Haystack(text=_insert(hay[:n_sentences], inserted), questions=tuple(questions))


def _assign_slots(needles: Sequence[Needle], rng: Random) -> tuple[list[list[int]], list[str]]:
    """The slots of each needle's sentences, in order, and all sentences by slot. Needles are at even depths, and
    distractors have the other slots."""
    sentences = [sentence for needle in needles for sentence in needle.sentences]
    distractors = [sentence for needle in needles for sentence in needle.distractors]
    n, n_slots = len(sentences), len(sentences) + len(distractors)
    free = [rng.randrange(i * n_slots // n, (i + 1) * n_slots // n) for i in range(n)]
    rng.shuffle(free)
    slots = [sorted(free.pop() for _ in needle.sentences) for needle in needles]
    by_slot = dict(zip(chain.from_iterable(slots), sentences, strict=True))
    rng.shuffle(distractors)
    return slots, [by_slot.get(slot) or distractors.pop() for slot in range(n_slots)]


def _insert(hay: Sequence[str], inserted: Sequence[str]) -> str:
    """The document with needles, each in the middle of an even part of it."""
    cuts = [round(len(hay) * (i + 0.5) / len(inserted)) for i in range(len(inserted))]
    parts: list[str] = []
    for first, last, sentence in zip([0, *cuts], cuts, inserted, strict=False):
        parts += [*hay[first:last], sentence]
    return " ".join([*parts, *hay[cuts[-1] :]])


# -- the families ----------------------------------------------------------------------------------------------------


def _make_single(rng: Random, document_words: Set[str]) -> Iterator[Needle]:
    """Needles of different kinds. The first wrong answer is said in the text of another subject of the same kind, and
    the others occur nowhere."""
    unused_answers = {
        subjects: [word for word in words.split() if word.lower() not in document_words]
        for subjects, words in SUBJECTS.items()
    }
    usable = [subjects for subjects, words in unused_answers.items() if len(words) >= N_ANSWERS]
    if len(usable) < N_NEEDLES:
        raise UsageError("needles: this text contains too many of the words that needles use as answers")
    for subjects in rng.sample(usable, N_NEEDLES):
        answers = rng.sample(unused_answers[subjects], N_ANSWERS)
        names = rng.sample(subjects, 1 + N_DISTRACTORS)  # the first is asked about
        sentence, *distractors = (
            f"{name[0].upper()}{name[1:]} {answer}." for name, answer in zip(names, answers, strict=False)
        )
        question = Needle(sentences=(sentence,), question=names[0], answers=tuple(answers), right=(0,))
        yield replace(question, distractors=tuple(distractors))


def _make_keyed(rng: Random, document_words: Set[str], *, chained: bool) -> Iterator[Needle]:
    """Needles that differ only in their key; wrong answers are the other needles' values.

    chained: variable tracking, where a second sentence refers to the first, and the question is about the second.
    """
    values, people = _draw_words(rng, document_words), rng.sample(PEOPLE, N_NEEDLES * (1 + chained))
    for right, (first, last) in enumerate(zip(people[:N_NEEDLES], people[-N_NEEDLES:], strict=True)):
        sentence = f"The secret word of the {first} is {values[right]}."
        reference = (f"The secret word of the {last} is that of the {first}.",) * chained
        question = f"the secret word of the {last} is"
        yield Needle(sentences=(sentence, *reference), question=question, answers=tuple(values), right=(right,))


def _make_multi_value(rng: Random, document_words: Set[str]) -> Iterator[Needle]:
    """Keys with several values, all of which are asked for; wrong answers are values of other keys."""
    values = _draw_words(rng, document_words, N_KEYS * N_VALUES)
    for i, person in enumerate(rng.sample(PEOPLE, N_KEYS)):
        own_values = values[i * N_VALUES : (i + 1) * N_VALUES]
        wrong_answers = rng.sample([value for value in values if value not in own_values], N_ANSWERS - 1)
        sentences = tuple(f"One of the secret words of the {person} is {value}." for value in own_values)
        question, answers = f"one of the secret words of the {person} is", (*own_values, *wrong_answers)
        yield Needle(sentences=sentences, question=question, answers=answers, right=tuple(range(N_VALUES)))


def _make_words(rng: Random, document_words: Set[str]) -> Iterator[Needle]:
    """Counting of common words: lists of ten words, one of which occurs more often."""
    for person in rng.sample(PEOPLE, N_NEEDLES):
        words, right = _draw_words(rng, document_words), rng.randrange(N_ANSWERS)
        entries = [*words, *[words[right]] * (FREQUENT_WORD_COUNT - 1)]
        rng.shuffle(entries)
        sentence = f"The list of the {person} is: {', '.join(entries)}."
        question = f"the word that is most often in the list of the {person} is"
        yield Needle(sentences=(sentence,), question=question, answers=tuple(words), right=(right,))


def _draw_words(rng: Random, document_words: Set[str], n: int = N_ANSWERS) -> list[str]:
    """Words that do not occur in the text."""
    absent = [word for word in WORDS if word not in document_words]
    if len(absent) < n:
        raise UsageError("needles: this text contains too many of the words that needles use as values")
    return rng.sample(absent, n)


FAMILIES: dict[NeedleFamily, Callable[[Random, Set[str]], Iterator[Needle]]] = {
    "single": _make_single,
    "multi_key": partial(_make_keyed, chained=False),
    "multi_value": _make_multi_value,
    "variables": partial(_make_keyed, chained=True),
    "words": _make_words,
}
