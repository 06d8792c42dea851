"""Format a recommendation as table rows and notes, and as JSON. Both mark interpolated values as such."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from ... import units
from ...results.sanitize import sanitize_line
from ...results.stats import Estimate
from .. import formatting
from ..comparable_quality import MIN_LENGTH_SHARE, UNCERTAIN, QualityFigure
from .recommendation import Candidate, Recommendation, describe_counted
from .requirements import SHAPE, Requirements

SUITE_PARTS = {  # a suite and a part of it that time a mode
    "forward": ("quickstart", "length"),
    "forward_backward": ("quickstart", "training"),
    "prefill": ("decode", "prompts"),
    "decode": ("decode", "contexts"),
}
SHARED_KV_PART = "key-value heads"  # the part of decode that supports any number of key-value heads
# parts of fidelity_long, their lengths and directions
ERROR_PARTS = (("MiniLM at 384", 384, False), ("SmolLM2 at 2048", 2048, True), ("SmolLM2 at 8192", 8192, True))
SWAP_SUITES = (("swap", 2048), ("swap_long", 8192))  # and the tokens of their texts
TIE_MARK = "="  # after a rank that several mechanisms share
UNVERIFIED_MARK = "?"  # instead of a rank


# of a mechanism: the cells rank, name, speedup, time, and memory or state; and its options and quality as details
AnswerRow: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]


def list_headings(recommendation: Recommendation) -> tuple[str, ...]:
    """The headings of the cells of a row; when decoding, memory is that of the state."""
    return "rank", "mechanism", "speedup", "time", "state" if recommendation.requirements.mode == "decode" else "memory"


def as_rows(recommendation: Recommendation) -> list[AnswerRow]:
    """Return one row per choice, fastest first."""
    counts = Counter(choice.rank for choice in recommendation.choices)
    marks = {rank: TIE_MARK if count > 1 else "" for rank, count in counts.items()}
    return [
        _make_row(recommendation, f"{choice.rank}{marks[choice.rank]}", choice, _format_quality(choice))
        for choice in recommendation.choices
    ]


def list_unverified_rows(recommendation: Recommendation) -> list[AnswerRow]:
    """Return one row per mechanism of unknown quality, without a rank, fastest first."""
    return [
        _make_row(recommendation, UNVERIFIED_MARK, entry, _format_unverified(entry))
        for entry in recommendation.not_verified
    ]


def _format_unverified(entry: Candidate) -> str:
    """The figures of other lengths, whose conditions are noted once; or why there are none."""
    figures = [figure.describe(entry.label, with_conditions=False) for figure in _list_figures(entry)]
    return "; ".join(figures or dict.fromkeys(entry.reasons.values()))


def _list_figures(entry: Candidate) -> list[QualityFigure]:
    figures = (entry.perplexity, entry.error)
    return [figure for figure in figures if figure is not None and figure.conditions is not None]


def _format_quality(choice: Candidate) -> str:
    """The figures that are compared, whose conditions are noted once; or why its error is unknown."""
    figures = [x.describe(choice.label, with_conditions=False) for x in choice.quality if x.conditions is not None]
    exact = ["exact"] if choice.error is not None and choice.error.conditions is None else []
    return "; ".join([*exact, *figures]) or choice.error_text


def _make_row(recommendation: Recommendation, rank: str, entry: Candidate, quality: str) -> AnswerRow:
    cost, label = entry.cost, entry.label
    size = cost.state if recommendation.requirements.mode == "decode" else cost.memory
    cells = (
        rank,
        "|".join(part.partition(":")[0] for part in label.split("|")),
        _format_estimate(cost.speedup, units.ratio),
        _format_estimate(cost.latency, units.duration),
        units.size(size.value) if size else units.EMPTY,
    )
    options = label if "|" in label else label.partition(":")[2]
    between = f"INTERPOLATED between {' and '.join(f'{end:,}' for end in cost.between)}" if cost.between else ""
    details = (options, "; ".join(filter(None, (quality, between))))
    return tuple(map(sanitize_line, cells)), tuple(sanitize_line(text) for text in details if text)


def _format_estimate(estimate: Estimate | None, format_value: Any) -> str:
    return units.EMPTY if estimate is None else format_value(estimate.value, estimate.low, estimate.high)


def list_notes(recommendation: Recommendation) -> Iterator[str]:
    """Yield the configuration of the table, a legend, and the mechanisms left out with the reasons."""
    notes = (_list_config_notes, _list_legend, _list_left_out) if recommendation.config else (_list_config_notes,)
    for list_part in notes:
        yield from map(sanitize_line, list_part(recommendation))


def _list_config_notes(recommendation: Recommendation) -> Iterator[str]:
    requirements, config = recommendation.requirements, recommendation.config
    if config is None:
        machines = ", ".join(recommendation.machines)
        note = f" on the requested machine; machines with one: {machines}" if machines else ""
        yield f"No matching configuration was timed{note}."
        return
    if not recommendation.choices:
        satisfies = "is known to satisfy" if recommendation.not_verified else "satisfies"
        yield f"No measured mechanism {satisfies} the requirements."
    yield f"Measured configuration: {_format_config(config)}."
    if recommendation.local_machine not in (None, config["machine"]) and not requirements.machine:
        yield (
            f"This machine, {recommendation.local_machine}, has timings of fewer than two mechanisms at a matching "
            "configuration; the machine with most timings was used instead."
        )
    if len(recommendation.machines) > 1:
        other_machines = ", ".join(name for name in recommendation.machines if name != config["machine"])
        yield f"Machines are not ranked together; select another with --machine NAME: {other_machines}."
    yield from recommendation.quality_notes
    unverified = [figure for entry in recommendation.not_verified for figure in _list_figures(entry)]
    for metric, conditions in dict.fromkeys((figure.metric, figure.on) for figure in unverified):
        yield f"The {metric} of mechanisms that are not ranked was measured in {conditions}."
    for entry in (*recommendation.choices, *recommendation.not_verified):
        if entry.cost.counted_memory and entry.cost.memory:
            yield f"{entry.label}: memory {units.size(entry.cost.memory.value)}{describe_counted(entry.cost)}."
    if not requirements.has_quality_bounds:
        yield (
            "Ranked are the mechanisms that no other one beats in both time and quality; set a bound on quality with "
            "--max-error, --max-ppl-ratio or --min-accuracy TASK=SHARE."
        )


def _list_legend(recommendation: Recommendation) -> Iterator[str]:
    choices, config = recommendation.choices, recommendation.config
    if any(TIE_MARK in rank for (rank, *_), _ in as_rows(recommendation)):
        yield f"{TIE_MARK}: not significantly different, as the 95% interval of the ratio of their times contains 1."
    if config and any(choice.cost.speedup is not None for choice in choices):
        yield f"Speedups are over {config['baseline']}."
    any_uncertain = any(figure.sure is False for choice in choices for figure in choice.quality)
    if any_uncertain or any(f"; {UNCERTAIN}: " in reason for reason in recommendation.left_out.values()):
        yield (
            f"{UNCERTAIN}: the value decides, but its 95% interval (over seeds, text segments or questions) "
            "extends to the other side of the bound."
        )


def _list_left_out(recommendation: Recommendation) -> Iterator[str]:
    replaced = {better.competitor.label for better in recommendation.neighbours}
    labels_by_reason: dict[str, list[str]] = defaultdict(list)
    for label, reason in recommendation.left_out.items():
        if label in replaced:
            yield f"{label} left out: {reason}"
        else:
            labels_by_reason[reason].append(label)
    for reason, labels in labels_by_reason.items():
        yield f"left out: {', '.join(labels)}: {reason}"


def describe_nearest(recommendation: Recommendation) -> str:
    """``dtype float32 instead of bfloat16, length 16,384 instead of 1,048,576``; empty without a nearest answer."""
    if recommendation.nearest is None:
        return ""
    names = {"seq_len": "length", **{name: name.replace("_", "-") for name in (*SHAPE, "kv_heads")}}
    differences = []
    for name, text in names.items():
        old, new = (getattr(x.requirements, name) for x in (recommendation, recommendation.nearest))
        if new != old:
            old, new = (f"{value:,}" if isinstance(value, int) else value for value in (old, new))
            differences.append(f"{text} {new} instead of {old}")
    return ", ".join(differences)


def _format_config(config: Mapping[str, Any]) -> str:
    batch, heads, head_dim = (_format_count(config[name]) for name in ("batch", "heads", "head_dim"))
    shape = f"batch {batch}, {heads} heads of {head_dim}"
    threads = f"{_format_count(config['threads'])} threads" if config["threads"] != 1 else "1 thread"
    parts = [shape, config["dtype"], threads if config["device"] == "cpu" else config["device"], config["machine"]]
    parts += ["caches cold"] if config["cache"] == "cold" else []
    parts += ["through torch.compile"] if config["compiled"] else []
    return ", ".join(map(str, parts)) + f", {formatting.format_direction(config['causal'])}"


def _format_count(value: Any) -> str:
    return units.integer(value) if units.is_present(value) else "any number of"


# -- runs to measure -----------------------------------------------------------------------------------------------


def list_commands(requirements: Requirements) -> Iterator[str]:
    """Yield the commands whose runs would allow a recommendation."""
    suite, part = SUITE_PARTS[requirements.mode]
    part = SHARED_KV_PART if requirements.mode == "decode" and requirements.kv_heads else part
    axes = [f"--seq-len {requirements.seq_len}", f"--device {requirements.device}"]
    for name in ("dtype", "batch", "heads", "kv_heads", "head_dim", "threads"):
        value = getattr(requirements, name)
        axes += [f"--{name.replace('_', '-')} {value}"] if value is not None else []
    if requirements.causal is not None and suite != "decode":
        axes.append(f"--causal {str(requirements.causal).lower()}")
    if requirements.mode == "prefill" and requirements.kv_heads:
        axes.append("--variant full,linear")  # mechanisms that support any number of key-value heads
    yield f"efficient-attn run {suite} {' '.join(axes)} --part {shlex.quote(part)} --out results/local/times"
    if requirements.max_error is not None:
        yield from _list_error_commands(requirements)
    if requirements.max_ppl_ratio is not None:
        suite = next((x for x, length in SWAP_SUITES if length >= requirements.seq_len * MIN_LENGTH_SHARE), None)
        yield from [f"efficient-attn run {suite} --out results/local/perplexity"] if suite else []
    for task in requirements.min_accuracy:
        suite = "retrieval" if task == "retrieval" else "accuracy"
        yield f"efficient-attn run {suite} --task {task} --out results/local/{task}"


def _list_error_commands(requirements: Requirements) -> Iterator[str]:
    """The part of the suite that measures errors in the direction in question, at half the length or more, if any."""
    for part, length, causal in ERROR_PARTS:
        verifies = length >= requirements.seq_len * MIN_LENGTH_SHARE
        if verifies and requirements.resolved_causal in (None, causal):
            yield f"efficient-attn run fidelity_long --part {shlex.quote(part)} --out results/local/errors"
            return


# -- JSON ----------------------------------------------------------------------------------------------------------


def as_json(recommendation: Recommendation) -> dict[str, Any]:
    """Return the recommendation as JSON data, with the rows that each choice is based on."""
    config = recommendation.config and {
        name: value for name, value in recommendation.config.items() if value is not None
    }
    return {
        "question": recommendation.requirements.as_data(),
        "place": config,
        "choices": [_choice_as_data(choice) for choice in recommendation.choices],
        "not_verified": [_unverified_as_data(entry) for entry in recommendation.not_verified],
        "left_out": dict(recommendation.left_out),
        "better_neighbours": {x.competitor.label: x.neighbour.label for x in recommendation.neighbours},
        "quality_notes": list(recommendation.quality_notes),
        "machines": list(recommendation.machines),
        "commands": [] if recommendation.choices else list(list_commands(recommendation.requirements)),
        "nearest": recommendation.nearest and as_json(recommendation.nearest),
    }


def _choice_as_data(choice: Candidate) -> dict[str, Any]:
    quality = [_figure_as_data(figure) for figure in choice.quality]
    error = choice.error and _figure_as_data(choice.error)
    return {"rank": choice.rank, **_candidate_as_data(choice), "error": error, "quality": quality}


def _unverified_as_data(entry: Candidate) -> dict[str, Any]:
    return {**_candidate_as_data(entry), "reason": "; ".join(entry.reasons.values())}


def _candidate_as_data(entry: Candidate) -> dict[str, Any]:
    cost = entry.cost
    return {
        "mechanism": entry.label,
        "how": cost.basis,
        "between": cost.between and list(cost.between),
        "speedup": _estimate_as_data(cost.speedup),
        "latency_ms": _estimate_as_data(cost.latency),
        "peak_memory_bytes": _estimate_as_data(cost.memory),
        "counted_peak_memory_bytes": _estimate_as_data(cost.counted_memory or cost.memory),
        "state_bytes": _estimate_as_data(cost.state),
        "loss": entry.error_text,
        "rows": [asdict(source) for source in dict.fromkeys(cost.sources)],
    }


def _figure_as_data(figure: QualityFigure) -> dict[str, Any]:
    names = ("value", "text", "on", "length", "causal", "measured_spec", "verified", "low", "high", "sure", "runs")
    data = {"what": figure.metric} | {name: getattr(figure, name) for name in names}
    return data | {name: getattr(figure.conditions, name, None) for name in ("model", "aggregate")}


def _estimate_as_data(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else estimate._asdict()
