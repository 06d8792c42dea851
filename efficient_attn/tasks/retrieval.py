"""Retrieval: what a trained model still finds in a long text with each mechanism in place of its attention.

Sentences are hidden in real text at even depths, and each is asked for: which of ten answers is the most likely? A
round is a haystack. Where the model itself, with exact attention, hardly answers better than chance, nothing is learned
from others: they are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from ..bench.config import Cell, Place
from ..bench.planning.request import Asked
from ..bench.task import Guess, Keys, Task
from ..errors import UsageError
from ..integrations.haystacks import ANSWERS, NEEDLES, Family, Haystack, make_haystack
from ..results.rows import Record, Row
from ..results.section import Column, Section
from ..results.stats import share_of
from .trained import OWN, PACE, check_places

if TYPE_CHECKING:
    from ..bench.case import Case
    from ..instruments.roofline import Ceiling
    from ..integrations.bundled import Loaded
    from ..integrations.haystack_scoring import Heard

SHORTEST = 512  # tokens of a haystack: ten needles, and text between them
DEPTHS = (10, 30, 50, 70, 90)  # per cent: the middles of the parts of a haystack by which answers are told apart
TELLING = 2  # times chance that the model's own answers must surely be better than
TOKENS = 16  # of a question, about


class RetrievalKeys(Keys):
    """model: ``smollm2``, or a folder with a decoder that transformers can load. text: ``sotu``, or a text file.

    needles: ``single``, each about another thing; ``multi_key``, which differ in their key alone; ``variables``, of
    which one leads to another; ``words``, lists of which the most frequent word is asked for.
    """

    model: tuple[str, ...] = ("smollm2",)
    text: str = "sotu"
    needles: tuple[Family, ...] = ("single", "multi_key")


def plan(asked: Asked) -> Iterator[tuple[Cell, int | None]]:
    """A cell for each model, kind of needles and length, with all of its haystacks."""
    from ..integrations.model_info import describe
    from ..integrations.texts import Text

    check_places(asked)
    text, keys = Text.find(asked.keys.text), asked.keys
    for name, needles, at in product(keys.model, keys.needles, asked.grid.combine("threads", "seq_len")):
        model, length = describe(name), at["seq_len"]
        model.check_length(length)
        if model.kind != "decoder":
            raise UsageError(f"--model {name}: it is an encoder, which does not go on with a text; give a decoder")
        if length < SHORTEST:
            raise UsageError(f"{asked.task}: seq_len {length} has no room for needles; give at least {SHORTEST}")
        if (long := sum(len(d) >= length for d in text.documents)) < asked.effort.rounds:  # a token is a letter or more
            raise UsageError(
                f"--text {keys.text}: at most {long} of its documents have {length} tokens, and each of "
                f"{asked.effort.rounds} rounds takes another one"
            )
        sizes: dict[str, Any] = {"heads": model.heads, "head_dim": model.head_dim, "causal": True}
        sizes |= {"max_len": model.positions, "inputs": f"{model.label}:{text.label}:{needles}"}
        yield asked.cell(Place(**at, **sizes), model=(name,), text=keys.text, needles=(needles,)), model.kv_heads


def judge(case: Case, row: Row, at: Callable[..., None]) -> Record:
    """The answers to all haystacks of a cell, or why nobody asks for them."""
    from ..integrations.model_info import NotInstalled

    row.extra = {"needles": case.keys.needles[0], "chance": 1 / ANSWERS}
    try:
        own = _ask_itself(case.cell)
    except NotInstalled as error:
        row.status, row.reason = "skipped", str(error)
        return Record(row)
    if case.variant != OWN and (reason := tell_silence(own)):
        row.status, row.reason = "skipped", reason
        return Record(row)
    return _tell(row, own if case.variant == OWN else _ask(case.cell, case.variant))


def tell_silence(own: Sequence[Heard]) -> str | None:
    """Why nothing is learned where the model itself answers like this; None where something is."""
    right = [answer.is_right for heard in own for answer in heard.answers]
    chance, found = 1 / ANSWERS, share_of(sum(right), len(right))
    if (found.low or 0.0) > TELLING * chance:
        return None
    value, low, high, by_chance = (f"{share:.0%}" for share in (*found, chance))
    return (
        f"says nothing here: {OWN} answers {value} of {len(right)} questions ({low} to {high}), chance is {by_chance}"
    )


def _tell(row: Row, heard: Sequence[Heard]) -> Record:
    """What was answered, as the row's columns, and each question among the samples."""
    answers = [(number, answer) for number, one in enumerate(heard) for answer in one.answers]
    right = [answer.is_right for _, answer in answers]
    found = share_of(sum(right), len(right))
    row.metric, row.accuracy = "share of right answers", found.value
    row.state_bytes = max(one.bytes for one in heard)
    row.extra |= {"questions": len(right), "accuracy_low": found.low, "accuracy_high": found.high}
    row.extra["margin"] = sum(answer.margin for _, answer in answers) / len(answers)
    for depth in DEPTHS:
        here = [answer.is_right for _, answer in answers if abs(100 * answer.depth - depth) < 100 / len(DEPTHS) / 2]
        row.extra[f"depth_{depth}"] = sum(here) / len(here) if here else None
    samples = {
        "haystack": [number for number, _ in answers],
        "depth": [answer.depth for _, answer in answers],
        "right": [int(x) for x in right],
        "margin": [answer.margin for _, answer in answers],
    }
    return Record(row, samples)


@lru_cache(maxsize=1)
def _open(cell: Cell) -> tuple[Loaded, tuple[Haystack, ...]]:
    """The model and the haystacks of a cell, which all of its cases in this worker share."""
    from ..integrations.bundled import load
    from ..integrations.texts import Text

    keys = dict(cell.keys)
    loaded, text = load(keys["model"][0]), Text.find(keys["text"])

    def count(words: str) -> int:
        return len(loaded.tokenizer(words, verbose=False).input_ids)

    given: dict[str, Any] = {"family": keys["needles"][0], "length": cell.place.seq_len, "count": count}
    return loaded, tuple(make_haystack(text, number, **given) for number in range(cell.effort.rounds))


def _ask(cell: Cell, spec: str) -> tuple[Heard, ...]:
    from ..integrations.haystack_scoring import ask

    loaded, haystacks = _open(cell)
    return tuple(ask(loaded, spec, haystack) for haystack in haystacks)


@lru_cache(maxsize=1)
def _ask_itself(cell: Cell) -> tuple[Heard, ...]:
    """The answers of the model as it is, by which the others' are judged; asked once in a worker."""
    return _ask(cell, OWN)


def guess(case: Case, best: Ceiling) -> Guess:
    """Of each haystack a pass without logits, and its questions on copies of the states; of memory those copies."""
    from ..bench.planning.cost_estimate import CALLS
    from ..integrations.model_info import describe

    model, s, attn = describe(case.keys.model[0]), case.shape, case.create()
    words = model.outputs * s.heads * s.head_dim  # numbers that only logits need
    pairs = attn.growth.cost(s.n, s.n, True)
    passes = 2 * s.n * (model.parameters - words) + 4 * model.layers * s.heads * s.head_dim * pairs
    questions = 2 * NEEDLES * TOKENS * model.parameters
    copies = NEEDLES * 8 * model.layers * s.kv_heads * s.head_dim * s.n  # of all keys and values, at most
    seconds = (passes + questions) / best.gemm_flops_per_s / PACE + 2 * copies / best.bytes_per_s
    return Guess(case.cell.effort.rounds * seconds / CALLS, 0, 4 * model.parameters + copies)  # one model for all cases


RETRIEVAL = Task(
    name="retrieval",
    words=("retrieval",),
    keys=RetrievalKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    columns={
        "needles": "their kind: single, multi_key, variables or words",
        "questions": "how many were asked",
        "chance": "the share that is right where nothing was read",
        "accuracy_low": "the lower end of the 95% interval of the share of right answers",
        "accuracy_high": "the upper end",
        "margin": "nats by which right answers are more likely than the best wrong one, mean",
        **{f"depth_{depth}": f"share of right answers where the needle lies around {depth}%" for depth in DEPTHS},
    },
    sections=(
        Section(
            name="retrieval",
            task="retrieval",
            title="Found in a haystack",
            layout="retrieval",
            columns=(
                Column(name="retrieval.needles", heading="Needles"),
                Column(name="accuracy", heading="Right answers", unit="share"),
                Column(name="retrieval.margin", heading="Margin, nats"),
            ),
            x="seq_len",
            y="accuracy",
        ),
    ),
)
