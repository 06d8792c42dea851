"""Haystacks: real text with needles in it, and questions that only those can answer who find a needle.

Four families, after RULER (Hsieh et al., 2024, arXiv:2404.06654). A question is the beginning of a sentence, which one
of ten answers ends. A model answers by what it holds to be likely, so nothing is parsed, and chance is one in ten.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import Literal

from ..errors import UsageError
from .texts import Text

Family = Literal["single", "multi_key", "variables", "words"]
Count = Callable[[str], int]  # the tokens of a text

NEEDLES = 10  # in a haystack; each has a question
ANSWERS = 10  # to a question, one of them right
ASKED = "\n\nAs said above, "  # how questions begin
LETTERS = 16  # of a document for each token, of which a haystack takes what fits

PEOPLE = (
    *("baker", "doctor", "painter", "farmer", "lawyer", "sailor", "teacher", "soldier", "singer", "tailor"),
    *("hunter", "dancer", "driver", "pilot", "nurse", "judge", "writer", "priest", "merchant", "gardener"),
)
# a sentence for each kind of thing, and what may end it
KINDS = {
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
OFTEN = 5  # times that a list has its most frequent word; the others are in it once


@dataclass(frozen=True, kw_only=True)
class Question:
    """The beginning of a sentence, ``answers`` that might end it, and which of them is right. depth: where in the
    haystack it is said, from 0 to 1."""

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
    """Sentences for a haystack, in order, and the question that they answer."""

    sentences: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    right: int


def make_haystack(text: Text, number: int, *, family: Family, length: int, count: Count) -> Haystack:
    """A haystack of at most ``length`` tokens, a question and its answer included; the same for the same number.

    Its hay are the first sentences of a document, each number another one, and needles lie between them at even depths.
    Raises `UsageError` where the text has too few documents of that length, and for a length without room for needles.
    """
    found = -1
    for at in text.spread():
        document = text.documents[at]
        if len(document) < length:  # a token is a letter at least
            continue
        made = _fill(document[: LETTERS * length], Random(f"{family} {number}"), family, length, count)
        found += made is not None
        if made is not None and found == number:
            return made
    raise UsageError(f"{text.label} has {found + 1} documents of {length} tokens, haystack {number + 1} is asked for")


def _fill(document: str, draw: Random, family: Family, length: int, count: Count) -> Haystack | None:
    """The haystack of one document; None where that is too short."""
    hay = re.split(r"(?<=[.!?])\s+", " ".join(document.split()))
    needles = FAMILIES[family](draw, {word.lower() for word in re.findall(r"\w+", document)})
    slots, inserted = _place(needles, draw)
    room = max(count(ASKED + n.question + answer) for n in needles for answer in n.answers)
    lengths = range(len(hay) + 1)
    taken = bisect_right(lengths, length - room, key=lambda n: count(_mix(hay[:n], inserted))) - 1
    if taken == len(hay):
        return None
    if taken < len(inserted) / 2:
        needed = room + count(" ".join(inserted))
        raise UsageError(
            f"needles {family}: seq_len {length} is too short: needles and a question take {needed} tokens, and there "
            "has to be text between them"
        )
    questions = tuple(
        Question(text=ASKED + n.question, answers=n.answers, right=n.right, depth=(mine[0] + 0.5) / len(inserted))
        for n, mine in zip(needles, slots, strict=True)
    )
    return Haystack(text=_mix(hay[:taken], inserted), questions=questions)


def _place(needles: Sequence[Needle], draw: Random) -> tuple[list[list[int]], list[str]]:
    """The slots of each needle's sentences, in order, and the sentences by slot."""
    free = list(range(sum(len(needle.sentences) for needle in needles)))
    draw.shuffle(free)
    slots = [sorted(free.pop() for _ in needle.sentences) for needle in needles]
    placed = {at: s for n, mine in zip(needles, slots, strict=True) for at, s in zip(mine, n.sentences, strict=True)}
    return slots, [placed[at] for at in sorted(placed)]


def _mix(hay: Sequence[str], inserted: Sequence[str]) -> str:
    """The hay with what is inserted, each in the middle of an even part of it."""
    cuts = [round(len(hay) * (i + 0.5) / len(inserted)) for i in range(len(inserted))]
    parts: list[str] = []
    for first, last, sentence in zip([0, *cuts], cuts, inserted, strict=False):
        parts += [*hay[first:last], sentence]
    return " ".join([*parts, *hay[cuts[-1] :]])


# -- the families ----------------------------------------------------------------------------------------------------


def _make_single(draw: Random, said: Set[str]) -> Iterator[Needle]:
    """Each needle about another kind of thing; wrong answers are of its kind, and stand nowhere in the haystack."""
    kinds = {kind: [w for w in ends.split() if w.lower() not in said] for kind, ends in KINDS.items()}
    known = [kind for kind, ends in kinds.items() if len(ends) >= ANSWERS]
    if len(known) < NEEDLES:
        raise UsageError("needles: this text names too many of the things that needles are about")
    for kind in draw.sample(known, NEEDLES):
        answers = draw.sample(kinds[kind], ANSWERS)
        right = draw.randrange(ANSWERS)
        sentence = f"{kind[0].upper()}{kind[1:]} {answers[right]}."
        yield Needle(sentences=(sentence,), question=kind, answers=_spaced(answers), right=right)


def _make_multi_key(draw: Random, said: Set[str]) -> Iterator[Needle]:
    """Needles that differ in their key alone; wrong answers are the other needles' values."""
    values = _draw_words(draw, said)
    for right, person in enumerate(draw.sample(PEOPLE, NEEDLES)):
        question = f"the secret word of the {person} is"
        sentence = f"The secret word of the {person} is {values[right]}."
        yield Needle(sentences=(sentence,), question=question, answers=_spaced(values), right=right)


def _make_variables(draw: Random, said: Set[str]) -> Iterator[Needle]:
    """Variable tracking: one variable has a value, another has what the first has, and that is asked for."""
    values, people = _draw_words(draw, said), draw.sample(PEOPLE, 2 * NEEDLES)
    for right, (first, second) in enumerate(zip(people[:NEEDLES], people[NEEDLES:], strict=True)):
        given = f"The secret word of the {first} is {values[right]}."
        passed = f"The secret word of the {second} is that of the {first}."
        question = f"the secret word of the {second} is"
        yield Needle(sentences=(given, passed), question=question, answers=_spaced(values), right=right)


def _make_words(draw: Random, said: Set[str]) -> Iterator[Needle]:
    """Counting of common words: lists of ten words, of which one is there more often."""
    for person in draw.sample(PEOPLE, NEEDLES):
        words, right = _draw_words(draw, said), draw.randrange(ANSWERS)
        listed = [*words, *[words[right]] * (OFTEN - 1)]
        draw.shuffle(listed)
        sentence = f"The list of the {person} is: {', '.join(listed)}."
        question = f"the word that is most often in the list of the {person} is"
        yield Needle(sentences=(sentence,), question=question, answers=_spaced(words), right=right)


def _draw_words(draw: Random, said: Set[str]) -> list[str]:
    """Ten words that stand nowhere in the text."""
    unsaid = [word for word in WORDS if word not in said]
    if len(unsaid) < ANSWERS:
        raise UsageError("needles: this text says too many of the words that needles have as values")
    return draw.sample(unsaid, ANSWERS)


def _spaced(answers: Sequence[str]) -> tuple[str, ...]:
    return tuple(f" {answer}" for answer in answers)


FAMILIES: dict[Family, Callable[[Random, Set[str]], list[Needle]]] = {
    "single": lambda *given: list(_make_single(*given)),
    "multi_key": lambda *given: list(_make_multi_key(*given)),
    "variables": lambda *given: list(_make_variables(*given)),
    "words": lambda *given: list(_make_words(*given)),
}
