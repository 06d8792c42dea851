"""Answers of the front page: for each use, length, machine and bound on quality, what `recommend` recommends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from ... import units
from ...results.stats import Estimate
from .. import formatting
from ..answers.cost_curves import CostAtLength, CostCurve
from ..answers.pooled_times import GROUP_SPREAD, Z_95
from ..answers.recommendation import Candidate, Recommendation, recommend
from ..answers.recommendation_data import RecommendationData
from ..answers.requirements import SHAPE, Mode, Requirements, matches
from ..approximation_errors import SHARED_KV_MECHANISMS
from ..comparable_quality import ROUNDING_ERROR, QualityFigure
from .compact import TextTable, format_call
from .site_names import split_label

MAX_ROWS = 8
DEFAULT_LENGTH = 8192
DEFAULT_USES = ("prompt", "encode")  # the first that was measured
DEFAULT_SHAPE = "most measured"  # at each length, as `recommend` chooses
EXACT = "full"
APPROXIMATELY = "\u2248 "  # before an interpolated number


class Use(NamedTuple):
    """What a mechanism is used for: a mode and a direction."""

    key: str
    title: str
    mode: Mode
    causal: bool


class Bound(NamedTuple):
    """A bound on quality. limit: the field of `Requirements` that it sets, empty for none."""

    key: str
    title: str
    limit: str = ""
    most: float = math.inf

    def require(self, requirements: Requirements) -> Requirements:
        """The requirements with this bound."""
        return replace(requirements, **{self.limit: self.most}) if self.limit else requirements


USES = (
    Use("prompt", "reading a prompt", "forward", causal=True),
    Use("train", "training step", "forward_backward", causal=True),
    Use("decode", "decoding a token", "decode", causal=True),
    Use("encode", "reading, not causal", "forward", causal=False),
    Use("train-encoder", "training, not causal", "forward_backward", causal=False),
)
BOUNDS = (
    Bound("any", "any"),
    Bound("ppl-1.1", "perplexity ratio at most 1.1", "max_ppl_ratio", 1.1),
    Bound("ppl-1.5", "perplexity ratio at most 1.5", "max_ppl_ratio", 1.5),
    Bound("error-0.1", "relative error at most 0.1", "max_error", 0.1),
    Bound("error-0.5", "relative error at most 0.5", "max_error", 0.5),
    Bound("exact", "exact", "max_error", ROUNDING_ERROR),
)
USE_TITLES = {use.mode: use.title for use in USES if use.causal}  # by mode


class AnswerRow(NamedTuple):
    """Texts of a mechanism. conditions: model and length of its quality; note: how it was estimated, and the spread."""

    name: str
    options: str
    link: str
    speedup: str
    quality: str
    conditions: str
    memory: str
    note: str
    runs: tuple[str, ...]


class Answer(NamedTuple):
    """The answer to a question. sentence: how many mechanisms satisfy the bound, or which comes nearest. left_out: why
    mechanisms are not shown that satisfy it too."""

    sentence: str
    rows: tuple[AnswerRow, ...]
    left_out: str


class LengthAnswers(NamedTuple):
    """The answers at a length, by bound. config_text: the configuration of the default bound's."""

    length: int
    config_text: str
    answers: Mapping[str, Answer]


ShapeAnswers: TypeAlias = Mapping[str, tuple[LengthAnswers, ...]]


class PickerData(NamedTuple):
    """All answers, by machine, use and shape. machines: the names by key, most rows first."""

    machines: Mapping[str, str]
    answers: Mapping[str, Mapping[str, ShapeAnswers]]
    default_bound: str

    @property
    def default(self) -> tuple[str, str, LengthAnswers] | None:
        """Machine, use and answers of the first screen: the machine with most rows, a causal forward pass at 8K."""
        for machine, by_use in self.answers.items():
            use = next((use for use in DEFAULT_USES if use in by_use), next(iter(by_use)))
            by_length = next(iter(by_use[use].values()))
            return machine, use, min(by_length, key=lambda x: abs(math.log(x.length / DEFAULT_LENGTH)))
        return None

    def format_scripts(self, run_pages: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the address and the content of each machine's script:
        ``addAnswers(machine, texts, rows, uses, runPages);``, where texts and rows are stored once."""
        for machine, by_use in self.answers.items():
            texts, rows = TextTable(), dict[AnswerRow, int]()
            uses: dict[str, list[Any]] = {use: [] for use in by_use}
            for use, by_shape in by_use.items():
                for shape, by_length in by_shape.items():
                    uses[use].append([texts.encode(shape), entries := []])
                    for length, config_text, answers in by_length:
                        entries.append([length, texts.encode(config_text), encoded := {}])
                        for bound, (sentence, answer_rows, left_out) in answers.items():
                            indices = [rows.setdefault(row, len(rows)) for row in answer_rows]
                            encoded[bound] = [texts.encode(sentence), indices, texts.encode(left_out)]
            listed = texts.encode(list(rows))
            yield f"answers-{machine}.js", format_call("addAnswers", machine, list(texts), listed, uses, run_pages)


_ConfigCurves = tuple[Mapping[str, Any], tuple[CostCurve, ...]]


def make_picker(data: RecommendationData, links: Mapping[str, str], names: Mapping[str, str]) -> PickerData:
    """Answer all questions. links: pages by mechanism. names: of machines."""
    by_machine: dict[tuple[str, str], list[_ConfigCurves]] = {}
    for config, curves in data.curves_by_config:
        machine = str(config["machine"] or "unknown machine")
        by_machine.setdefault((machine, str(config["device"])), []).append((config, curves))
    machines: dict[str, str] = {}
    answers: dict[str, dict[str, ShapeAnswers]] = {}
    by_count = sorted(by_machine.items(), key=lambda x: (-sum(len(y.points) for _, z in x[1] for y in z), x[0]))
    for (machine, device), configs in by_count:
        machine_data = replace(data, curves_by_config=tuple(configs))
        by_use = {use.key: _answer_use(machine_data, use, device, links) for use in USES}
        if any(by_use.values()):
            key = f"m{len(machines)}"
            machines[key] = names.get(machine, machine) + (f", {device}" if device != "cpu" else "")
            answers[key] = {use: by_shape for use, by_shape in by_use.items() if by_shape}
    quality = data.quality
    measured = {"ppl-1.1": quality.perplexity_ratios.sets, "error-0.1": quality.errors.sets, "any": True}
    return PickerData(machines, answers, next(key for key, sets in measured.items() if sets))


def _answer_use(data: RecommendationData, use: Use, device: str, links: Mapping[str, str]) -> ShapeAnswers:
    """Answer a use for each shape, with other key-value heads or its own, from the rows of one machine and device."""
    any_shape = Requirements(seq_len=1, mode=use.mode, causal=use.causal, device=device)
    shapes = {DEFAULT_SHAPE: any_shape}
    for config, curves in data.curves_by_config:
        if matches(config, any_shape):
            for kv_heads in {None, *(curve.kv_heads for curve in curves)} - {config["heads"]}:
                shape = replace(any_shape, **{name: config[name] for name in SHAPE}, kv_heads=kv_heads)
                shapes[_name_shape(shape)] = shape
    answers = {name: x for name, shape in shapes.items() if (x := tuple(_answer_shape(data, shape, links)))}
    return dict(sorted(answers.items(), key=lambda item: (item[0] != DEFAULT_SHAPE, -len(item[1]), item[0])))


def _name_shape(shape: Requirements) -> str:
    """``float32, 8 heads of size 64, 2 key-value heads, batch 1, 1 thread``."""
    texts = formatting.format_setting_parts({name: getattr(shape, name) for name in SHAPE}, {})
    texts["kv"] = formatting.format_count(shape.kv_heads, "key-value head") if shape.kv_heads else ""
    return ", ".join(filter(None, map(texts.get, ("dtype", "heads", "kv", "batch", "threads"))))


def _answer_shape(data: RecommendationData, shape: Requirements, links: Mapping[str, str]) -> Iterator[LengthAnswers]:
    """Answer at each length with at least two mechanisms."""
    configs = [
        (config, tuple(curve for curve in curves if shape.kv_heads or _has_own_heads(curve, config["heads"])))
        for config, curves in data.curves_by_config
        if matches(config, shape)
    ]
    shape_data = replace(data, curves_by_config=tuple(configs))
    for length in _list_lengths(configs):
        result = recommend(shape_data, replace(shape, seq_len=length))
        if result.config is not None and result.timed_count > 1:
            chosen = replace(data, curves_by_config=tuple(pair for pair in configs if pair[0] is result.config))
            requirements = replace(result.requirements, **{name: result.config[name] for name in SHAPE})
            answers = {bound.key: _answer(chosen, bound, requirements, links) for bound in BOUNDS}
            yield LengthAnswers(length, _name_shape(requirements), answers)


def _answer(data: RecommendationData, bound: Bound, requirements: Requirements, links: Mapping[str, str]) -> Answer:
    result = recommend(data, bound.require(requirements))
    choices = _drop_slower_than_exact(result.choices)
    if not bound.limit and all(choice.label == EXACT for choice in choices):  # no quality was measured
        choices = _drop_slower_than_exact((*result.choices, *result.not_verified))
    exact = next((choice.cost for choice in choices if choice.label == EXACT), None)
    rows = tuple(_make_row(choice, exact, result, links) for choice in choices[:MAX_ROWS])
    left_out = (f"{better.competitor.label} is left out: {better.describe()}." for better in result.neighbours)
    return Answer(_describe(data, bound, result, choices), rows, " ".join(left_out))


def _make_row(
    choice: Candidate, exact: CostAtLength | None, result: Recommendation, links: Mapping[str, str]
) -> AnswerRow:
    cost, (name, options) = choice.cost, split_label(choice.label)
    mark = APPROXIMATELY if cost.between else ""
    between = " and ".join(map(units.short_length, cost.between or ()))
    speedup = cost.speedup or (exact and _divide_times(exact, cost))
    memory = cost.state if result.requirements.mode == "decode" else cost.memory
    figure = next(iter(choice.quality), choice.error)
    is_exact = choice.label == EXACT
    return AnswerRow(
        name=name,
        options=options,
        link=links.get(name.partition(" ")[0], ""),
        speedup="1.00x" if is_exact else mark + units.ratio(*speedup) if speedup else units.EMPTY,
        quality="exact" if is_exact else figure.text if figure else choice.error_text,
        conditions=_format_conditions(figure) if figure else "",
        memory=mark + units.size(memory.value) if memory else units.EMPTY,
        note=f"interpolated between {between}" if between else cost.spread,
        runs=tuple(dict.fromkeys(row.run for row in cost.sources)),
    )


def _has_own_heads(curve: CostCurve, heads: int | None) -> bool:
    """Whether a mechanism has as many key-value heads as heads, or is one that shares them."""
    return curve.kv_heads in (None, heads) or curve.label.partition(":")[0] in SHARED_KV_MECHANISMS


def _divide_times(exact: CostAtLength, cost: CostAtLength) -> Estimate:
    """The speedup over exact attention of a mechanism that was not timed next to it."""
    ratio = exact.latency.value / cost.latency.value
    spread = Z_95 * math.sqrt(2) * GROUP_SPREAD
    factor = math.exp(math.hypot(exact.half_width, cost.half_width, spread))
    return Estimate(ratio, ratio / factor, ratio * factor)


def _list_lengths(configs: Sequence[_ConfigCurves]) -> list[int]:
    """The measured lengths, and the powers of two between them."""
    measured = {point.length for _, curves in configs for curve in curves for point in curve.points}
    powers = (2**exponent for exponent in range(max(measured, default=0).bit_length()))
    return sorted(measured | {power for power in powers if power > min(measured)})


def _format_conditions(figure: QualityFigure) -> str:
    """``SmolLM2-135M, 8K``; empty for exact attention."""
    if figure.conditions is None:
        return ""
    length = units.short_length(figure.length) if figure.length else ""
    return ", ".join(filter(None, (figure.conditions.model, length, "" if figure.verified else "not verified here")))


def _drop_slower_than_exact(choices: Sequence[Candidate]) -> list[Candidate]:
    """Mechanisms up to the baseline, fastest first: slower ones have neither its speed nor its quality."""
    by_time = sorted(choices, key=lambda choice: choice.cost.latency.value)
    exact = next((position for position, choice in enumerate(by_time, 1) if choice.label == EXACT), None)
    return [x for x in by_time[:exact] if exact or not x.cost.speedup or x.cost.speedup.value > 1]


def _describe(data: RecommendationData, bound: Bound, result: Recommendation, choices: Sequence[Candidate]) -> str:
    """Say how many mechanisms satisfy the bound; if only exact attention does, which comes nearest."""
    count = sum(choice.label != EXACT for choice in choices)
    notes = []
    if result.not_verified:
        notes.append(f"{len(result.not_verified)} have no verified quality at this length.")
    if len(choices) > MAX_ROWS:
        notes.insert(0, f"The {MAX_ROWS} fastest are shown.")
    if not count:
        start = f"{'Only exact attention' if choices else 'No mechanism timed here'} is known to satisfy this."
        return " ".join((start, _describe_nearest(data, bound, result.requirements), *notes))
    if bound.limit:
        verb = "satisfy this and are"
    else:
        verb = "are" if any(choice.reasons for choice in choices) else "have the best quality at their speed and are"
    exact = f"exact attention{' without shared heads' if result.requirements.kv_heads else ''}"
    more = f"; {len(result.neighbours)} left out" if bound.limit and result.neighbours else ""
    counts = f"{count} of {result.timed_count} mechanisms timed here {verb} faster than {exact}{more}."
    return " ".join((counts, *notes))


def _describe_nearest(data: RecommendationData, bound: Bound, requirements: Requirements) -> str:
    """Of the mechanisms faster than exact attention that do not satisfy the bound, the one with the best quality."""
    unbounded = recommend(data, bound._replace(most=math.inf).require(requirements))
    candidates = (choice for choice in _drop_slower_than_exact(unbounded.choices) if choice.label != EXACT)
    measured = [(choice.quality[0].value, choice) for choice in candidates if choice.quality]
    if not measured:
        return " ".join(unbounded.quality_notes) or "The quality of no faster mechanism is verified at this length."
    _, nearest = min(measured, key=lambda pair: pair[0])
    speedup = f" at {units.ratio(nearest.cost.speedup.value)}" if nearest.cost.speedup else ""
    figure = nearest.quality[0]
    return f"The nearest is {nearest.label}{speedup}: {figure.text} ({_format_conditions(figure)})."
