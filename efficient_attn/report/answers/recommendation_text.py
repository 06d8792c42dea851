"""Format a recommendation as table rows and notes, and as JSON. Both mark interpolated values as such."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from ... import units
from ...results.sanitize import sanitize_line
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
    """Return one row per choice, fastest first, with the figures that are compared, or why its error is unknown."""
    counts, rows = Counter(choice.rank for choice in recommendation.choices), []
    for choice in recommendation.choices:
        exact = ["exact"] if choice.error is not None and choice.error.conditions is None else []
        quality = "; ".join([*exact, *_describe_figures(choice, choice.quality)]) or choice.error_text
        rows.append(_make_row(recommendation, f"{choice.rank}{TIE_MARK * (counts[choice.rank] > 1)}", choice, quality))
    return rows


def list_unverified_rows(recommendation: Recommendation) -> list[AnswerRow]:
    """Return one row per mechanism of unknown quality, without a rank, fastest first, with its figures of other
    lengths, or why there are none."""
    return [
        _make_row(
            recommendation,
            UNVERIFIED_MARK,
            entry,
            "; ".join(
                _describe_figures(entry, (entry.perplexity, entry.error)) or dict.fromkeys(entry.reasons.values())
            ),
        )
        for entry in recommendation.not_verified
    ]


def _describe_figures(entry: Candidate, figures: Iterable[QualityFigure | None]) -> list[str]:
    """The measured figures, without their conditions, which are noted once."""
    measured = (figure for figure in figures if figure is not None and figure.conditions is not None)
    return [figure.describe(entry.label, with_conditions=False) for figure in measured]


def _make_row(recommendation: Recommendation, rank: str, entry: Candidate, quality: str) -> AnswerRow:
    cost, label = entry.cost, entry.label
    size = cost.state if recommendation.requirements.mode == "decode" else cost.memory
    cells = (
        rank,
        "|".join(name for name, _ in formatting.split_label(label)),
        units.ratio(*cost.speedup) if cost.speedup else units.EMPTY,
        units.duration(*cost.latency),
        units.size(size.value) if size else units.EMPTY,
    )
    options = label if "|" in label else label.partition(":")[2]
    between = f"INTERPOLATED between {' and '.join(f'{end:,}' for end in cost.between)}" if cost.between else ""
    details = (options, "; ".join(filter(None, (quality, between, cost.spread))))
    return tuple(map(sanitize_line, cells)), tuple(sanitize_line(text) for text in details if text)


def list_notes(recommendation: Recommendation) -> Iterator[str]:
    """Yield the configuration of the table, a legend, and the mechanisms left out with the reasons."""
    if recommendation.config is not None:
        parts = (_list_config_notes, _list_legend, _list_left_out)
        yield from (
            sanitize_line(note) for list_part in parts for note in list_part(recommendation, recommendation.config)
        )
        return
    machines = ", ".join(recommendation.machines)
    note = f" on the requested machine; machines with one: {machines}" if machines else ""
    if recommendation.disturbed:
        left_out = formatting.format_count(recommendation.disturbed, "matching row")
        note += f" ({left_out} left out, as other programs disturbed them: measure on an idle machine)"
    yield sanitize_line(f"No matching configuration was timed{note}.")


def _list_config_notes(recommendation: Recommendation, config: Mapping[str, Any]) -> Iterator[str]:
    requirements, not_verified = recommendation.requirements, recommendation.not_verified
    if not recommendation.choices:
        yield f"No measured mechanism {'is known to satisfy' if not_verified else 'satisfies'} the requirements."
    parts = [formatting.format_config({**config}, {}), "caches cold" if config["cache"] == "cold" else ""]
    parts += ["through torch.compile" if config["compiled"] else "", formatting.format_direction(config["causal"])]
    yield f"Measured configuration: {', '.join(filter(None, parts))}."
    if recommendation.local_machine not in (None, config["machine"]) and not requirements.machine:
        yield (
            f"This machine, {recommendation.local_machine}, has timings of fewer than two mechanisms at a matching "
            "configuration; the machine with most timings was used instead."
        )
    if other_machines := [name for name in recommendation.machines if name != config["machine"]]:
        names = ", ".join(other_machines)
        yield f"Machines are not ranked together; select another with --machine NAME: {names}."
    yield from recommendation.quality_notes
    figures = [figure for entry in not_verified for figure in (entry.perplexity, entry.error)]
    for metric, conditions in dict.fromkeys((x.metric, x.on) for x in figures if x and x.conditions):
        yield f"The {metric} of mechanisms that are not ranked was measured in {conditions}."
    for entry in (*recommendation.choices, *not_verified):
        if entry.cost.counted_memory and entry.cost.memory:
            yield f"{entry.label}: memory {units.size(entry.cost.memory.value)}{describe_counted(entry.cost)}."
    if not requirements.has_quality_bounds:
        yield (
            "Ranked are the mechanisms that no other one beats in both time and quality; set a bound on quality with "
            "--max-error, --max-ppl-ratio or --min-accuracy TASK=SHARE."
        )


def _list_legend(recommendation: Recommendation, config: Mapping[str, Any]) -> Iterator[str]:
    choices = recommendation.choices
    if len({choice.rank for choice in choices}) < len(choices):
        yield f"{TIE_MARK}: not significantly different, as the 95% interval of the ratio of their times contains 1."
    labels_by_runs: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for entry in (*choices, *recommendation.not_verified):
        labels_by_runs[tuple(dict.fromkeys(row.run for row in entry.cost.sources))].append(entry.label)
    for runs, labels in labels_by_runs.items():
        yield f"Timed in {formatting.join_words(runs)}: {'all' if len(labels_by_runs) == 1 else ', '.join(labels)}."
    if any(choice.cost.speedup is not None for choice in choices):
        yield f"Speedups are over {config['baseline']}."
    any_uncertain = any(figure.sure is False for choice in choices for figure in choice.quality)
    if any_uncertain or any(f"; {UNCERTAIN}: " in reason for reason in recommendation.left_out.values()):
        yield (
            f"{UNCERTAIN}: the value decides, but its 95% interval (over seeds, text segments or questions) "
            "extends to the other side of the bound."
        )


def _list_left_out(recommendation: Recommendation, _: Mapping[str, Any]) -> Iterator[str]:
    replaced = {better.competitor.label for better in recommendation.neighbours}
    labels_by_reason: dict[str, list[str]] = defaultdict(list)
    for label, reason in recommendation.left_out.items():
        if label in replaced:
            yield f"{label} left out: {reason}"
        else:
            labels_by_reason[reason].append(label)
    yield from (f"left out: {', '.join(labels)}: {reason}" for reason, labels in labels_by_reason.items())


def describe_nearest(recommendation: Recommendation) -> str:
    """``dtype float32 instead of bfloat16, length 16,384 instead of 1,048,576.``; empty without a nearest answer."""
    if recommendation.nearest is None:
        return ""
    differences = []
    for name in ("seq_len", *SHAPE, "kv_heads"):
        old, new = (getattr(x.requirements, name) for x in (recommendation, recommendation.nearest))
        if new != old:
            old, new = (f"{value:,}" if isinstance(value, int) else value for value in (old, new))
            text = "length" if name == "seq_len" else name.replace("_", "-")
            differences.append(f"{text} {new} instead of {old}")
    dtypes = [x.requirements.dtype for x in (recommendation, recommendation.nearest)]
    note = f" All rows below are of {dtypes[1]}; what does not run in {dtypes[0]} is left out."
    return f"{', '.join(differences)}.{note if dtypes[0] != dtypes[1] else ''}"


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
    least = requirements.seq_len * MIN_LENGTH_SHARE  # of the lengths that verify a quality
    if requirements.max_error is not None:
        for part, length, causal in ERROR_PARTS:
            if length >= least and requirements.resolved_causal in (None, causal):
                yield f"efficient-attn run fidelity_long --part {shlex.quote(part)} --out results/local/errors"
                break
    if requirements.max_ppl_ratio is not None:
        suites = [name for name, length in SWAP_SUITES if length >= least]
        yield from (f"efficient-attn run {name} --out results/local/perplexity" for name in suites[:1])
    for task in requirements.min_accuracy:
        suite = "retrieval" if task == "retrieval" else "accuracy"
        yield f"efficient-attn run {suite} --task {task} --out results/local/{task}"


# -- JSON ----------------------------------------------------------------------------------------------------------


def as_json(recommendation: Recommendation) -> dict[str, Any]:
    """Return the recommendation as JSON data, with the rows that each choice is based on."""
    config, nearest = recommendation.config, recommendation.nearest
    return {
        "question": recommendation.requirements.as_data(),
        "place": config and {name: value for name, value in config.items() if value is not None},
        "choices": [
            {
                "rank": choice.rank,
                **_candidate_as_data(choice),
                "error": choice.error and _figure_as_data(choice.error),
                "quality": [_figure_as_data(figure) for figure in choice.quality],
            }
            for choice in recommendation.choices
        ],
        "not_verified": [
            {**_candidate_as_data(entry), "reason": "; ".join(entry.reasons.values())}
            for entry in recommendation.not_verified
        ],
        "left_out": dict(recommendation.left_out),
        "better_neighbours": {x.competitor.label: x.neighbour.label for x in recommendation.neighbours},
        "quality_notes": list(recommendation.quality_notes),
        "machines": list(recommendation.machines),
        "commands": [] if recommendation.choices else list(list_commands(recommendation.requirements)),
        "nearest": nearest and as_json(nearest),
    }


def _candidate_as_data(entry: Candidate) -> dict[str, Any]:
    cost = entry.cost
    estimates = {
        "speedup": cost.speedup,
        "latency_ms": cost.latency,
        "peak_memory_bytes": cost.memory,
        "counted_peak_memory_bytes": cost.counted_memory or cost.memory,
        "state_bytes": cost.state,
    }
    return {
        "mechanism": entry.label,
        "how": cost.basis,
        "between": cost.between and list(cost.between),
        **{name: estimate and estimate._asdict() for name, estimate in estimates.items()},
        "loss": entry.error_text,
        "rows": [asdict(source) for source in dict.fromkeys(cost.sources)],
    }


def _figure_as_data(figure: QualityFigure) -> dict[str, Any]:
    names = ("value", "text", "on", "length", "causal", "measured_spec", "verified", "low", "high", "sure", "runs")
    data = {"what": figure.metric} | {name: getattr(figure, name) for name in names}
    return data | {name: getattr(figure.conditions, name, None) for name in ("model", "aggregate")}
