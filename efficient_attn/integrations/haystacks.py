"""Texts with needles, and questions that can only be answered by finding a needle.

Four families, after RULER (Hsieh et al., 2024, arXiv:2404.06654). A question is the beginning of a sentence, completed
by one of ten answers. A model answers with the most likely one, so that nothing is parsed, and chance is one in ten.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain
from random import Random
from typing import Literal

from ..errors import UsageError
from .texts import Text

NeedleFamily = Literal["single", "multi_key", "variables", "words"]
CountTokens = Callable[[str], int]  # the number of tokens in a text

N_NEEDLES = 10  # in a haystack, each with a question
N_ANSWERS = 10  # to a question, one of them correct
QUESTION_PREFIX = "\n\nAs said above, "  # how questions begin
LETTERS_PER_TOKEN = 16  # more characters than any document has for each token

PEOPLE = (
    *("baker", "doctor", "painter", "farmer", "lawyer", "sailor", "teacher", "soldier", "singer", "tailor"),
    *("hunter", "dancer", "driver", "pilot", "nurse", "judge", "writer", "priest", "merchant", "gardener"),
)
# the beginnings of sentences, with their possible endings
SUBJECTS = {
    "the door of the old house is": "purple orange violet turquoise indigo silver pink brown yellow gray blue golden",
    "the animal in the kitchen is a": "tiger rabbit dolphin monkey turtle camel shark donkey goat whale zebra penguin",
    "the best restaurant is in": "Berlin Madrid Vienna Tokyo Rome Dublin Sydney Toronto Prague Lisbon Cairo Oslo Milan",
    "the fruit in the bowl is a": "banana mango lemon cherry peach grape pear plum coconut strawberry fig berry kiwi",
    "the instrument in the hall is a": "piano guitar violin trumpet flute drum harp horn bass pipe bell keyboard",
    "the name of the new cook is": "Oliver Hannah Emily Lucas Sophie Clara Victor Julia Simon Alice Oscar Laura Peter",
    "the twins love to play": "tennis football hockey golf soccer baseball basketball chess cricket rugby poker cards",
    "for dinner the guests were given": "pizza soup pasta salad rice cake pie chicken cheese sushi curry steak",
    "the student reads a book about": "physics chemistry biology geography music astronomy algebra botany Latin poetry",
    "in the drawer lies a": "hammer knife rope broom needle brush candle pencil mirror bottle spoon ribbon",
    "the child is dressed as a": "pirate king prince witch clown fairy princess knight ghost robot lion monk",
    "the boat is made of": "glass paper leather rubber plastic straw bamboo copper tin wax clay silk",
    "the twelfth guest came by": "train bicycle taxi tractor helicopter sled balloon truck bus plane canoe carriage",
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
    """The beginning of a sentence, ``answers`` that may complete it, and the correct one. depth: of its needle in the
    text, from 0 to 1."""

    text: str
    answers: tuple[str, ...]
    right: int
    depth: float


@dataclass(frozen=True, kw_only=True)
class Haystack:
    """A text, and the questions to it."""

    text: str
    questions: tuple[Question, ...]


@dataclass(frozen=True, kw_only=True)
class Needle:
    """Sentences for a text, in order, and the question that they answer."""

    sentences: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    right: int


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
    if n_sentences < len(inserted) / 2:
        needed = (
            f"needles and a question take {reserved + count(' '.join(inserted))} tokens, and need text between them"
        )
        raise UsageError(f"needles {family}: seq_len {length} is too short: {needed}")
    questions = []
    for n, needle_slots in zip(needles, slots, strict=True):
        answers, depth = tuple(f" {answer}" for answer in n.answers), (needle_slots[0] + 0.5) / len(inserted)
        questions.append(Question(text=QUESTION_PREFIX + n.question, answers=answers, right=n.right, depth=depth))
    return Haystack(text=_insert(hay[:n_sentences], inserted), questions=tuple(questions))


def _assign_slots(needles: Sequence[Needle], rng: Random) -> tuple[list[list[int]], list[str]]:
    """The slots of each needle's sentences, in order, and the sentences by slot."""
    free = list(range(sum(len(needle.sentences) for needle in needles)))
    rng.shuffle(free)
    slots = [sorted(free.pop() for _ in needle.sentences) for needle in needles]
    sentences = [sentence for needle in needles for sentence in needle.sentences]
    by_slot = sorted(zip(chain.from_iterable(slots), sentences, strict=True))
    return slots, [sentence for _, sentence in by_slot]


def _insert(hay: Sequence[str], inserted: Sequence[str]) -> str:
    """The document with needles, each in the middle of an even part of it."""
    cuts = [round(len(hay) * (i + 0.5) / len(inserted)) for i in range(len(inserted))]
    parts: list[str] = []
    for first, last, sentence in zip([0, *cuts], cuts, inserted, strict=False):
        parts += [*hay[first:last], sentence]
    return " ".join([*parts, *hay[cuts[-1] :]])


# -- the families ----------------------------------------------------------------------------------------------------


def _make_single(rng: Random, document_words: Set[str]) -> Iterator[Needle]:
    """Needles with different subjects; wrong answers fit the subject, but do not occur in the text."""
    unused_answers = {
        subject: [word for word in words.split() if word.lower() not in document_words]
        for subject, words in SUBJECTS.items()
    }
    usable = [subject for subject, words in unused_answers.items() if len(words) >= N_ANSWERS]
    if len(usable) < N_NEEDLES:
        raise UsageError("needles: this text contains too many of the words that needles use as answers")
    for subject in rng.sample(usable, N_NEEDLES):
        answers = rng.sample(unused_answers[subject], N_ANSWERS)
        right = rng.randrange(N_ANSWERS)
        sentence = f"{subject[0].upper()}{subject[1:]} {answers[right]}."
        yield Needle(sentences=(sentence,), question=subject, answers=tuple(answers), right=right)


def _make_keyed(rng: Random, document_words: Set[str], *, chained: bool) -> Iterator[Needle]:
    """Needles that differ only in their key; wrong answers are the other needles' values.

    chained: variable tracking, where a second sentence refers to the first, and the question is about the second.
    """
    values, people = _draw_words(rng, document_words), rng.sample(PEOPLE, N_NEEDLES * (1 + chained))
    for right, (first, last) in enumerate(zip(people[:N_NEEDLES], people[-N_NEEDLES:], strict=True)):
        sentence = f"The secret word of the {first} is {values[right]}."
        reference = (f"The secret word of the {last} is that of the {first}.",) * chained
        question = f"the secret word of the {last} is"
        yield Needle(sentences=(sentence, *reference), question=question, answers=tuple(values), right=right)


def _make_words(rng: Random, document_words: Set[str]) -> Iterator[Needle]:
    """Counting of common words: lists of ten words, one of which occurs more often."""
    for person in rng.sample(PEOPLE, N_NEEDLES):
        words, right = _draw_words(rng, document_words), rng.randrange(N_ANSWERS)
        entries = [*words, *[words[right]] * (FREQUENT_WORD_COUNT - 1)]
        rng.shuffle(entries)
        sentence = f"The list of the {person} is: {', '.join(entries)}."
        question = f"the word that is most often in the list of the {person} is"
        yield Needle(sentences=(sentence,), question=question, answers=tuple(words), right=right)


def _draw_words(rng: Random, document_words: Set[str]) -> list[str]:
    """Ten words that do not occur in the text."""
    absent = [word for word in WORDS if word not in document_words]
    if len(absent) < N_ANSWERS:
        raise UsageError("needles: this text contains too many of the words that needles use as values")
    return rng.sample(absent, N_ANSWERS)


FAMILIES: dict[NeedleFamily, Callable[[Random, Set[str]], Iterator[Needle]]] = {
    "single": _make_single,
    "multi_key": partial(_make_keyed, chained=False),
    "variables": partial(_make_keyed, chained=True),
    "words": _make_words,
}
