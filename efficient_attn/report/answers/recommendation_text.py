"""Format a recommendation as table rows and notes, and as JSON. Both mark interpolated values as such."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ... import units
from ...results.sanitize import sanitize_line
from ...results.stats import Estimate
from .quality import UNCERTAIN, QualityFigure
from .recommendation import RankedMechanism, Recommendation
from .requirements import Requirements

COLUMNS = ("rank", "mechanism", "speedup", "time", "memory", "state", "quality", "basis")
RIGHT = ("rank", "speedup", "time", "memory", "state")
SUITE_PARTS = {  # a suite and a part of it that time a mode
    "forward": ("quickstart", "length"),
    "forward_backward": ("quickstart", "training"),
    "prefill": ("decode", "prompts"),
    "decode": ("decode", "contexts"),
}
SHARED_KV_PART = "key-value heads"  # the part of decode that supports any number of them
TIE_MARK = "="  # after a rank that several mechanisms share


def as_rows(recommendation: Recommendation) -> list[list[str]]:
    """Return one table row per choice, fastest first."""
    ranks = [choice.rank for choice in recommendation.choices]
    tied = [ranks.count(choice.rank) > 1 for choice in recommendation.choices]
    rows = (
        _make_row(choice, tie, recommendation.requirements)
        for choice, tie in zip(recommendation.choices, tied, strict=True)
    )
    return [[sanitize_line(text) for text in row] for row in rows]


def _format_figure(figure: QualityFigure, requirements: Requirements) -> str:
    notes = (figure.on, figure.format_differences(requirements), figure.format_uncertainty())
    return f"{figure.text} ({'; '.join(filter(None, notes))})"


def _make_row(choice: RankedMechanism, tied: bool, requirements: Requirements) -> tuple[str, ...]:
    cost = choice.cost
    figures = [
        _format_figure(figure, requirements)
        for figure in choice.quality
        if figure.what != "error" and figure.value != 1.0
    ]
    return (
        f"{choice.rank}{TIE_MARK if tied else ''}",
        choice.label,
        _format_estimate(cost.speedup, units.ratio),
        _format_estimate(cost.latency, units.duration),
        units.size(cost.memory.value) if cost.memory else units.EMPTY,
        units.size(cost.state.value) if cost.state else units.EMPTY,
        "; ".join([choice.error_text, *figures]),
        _format_basis(choice),
    )


def _format_estimate(estimate: Estimate | None, format_value: Any) -> str:
    return units.EMPTY if estimate is None else format_value(estimate.value, estimate.low, estimate.high)


def _format_basis(choice: RankedMechanism) -> str:
    cost = choice.cost
    if cost.between is None:
        return "measured"
    return f"INTERPOLATED between {' and '.join(f'{end:,}' for end in cost.between)}"


def list_notes(recommendation: Recommendation) -> Iterator[str]:
    """Yield the configuration of the table, the mechanisms left out with the reasons, and a legend."""
    requirements, config = recommendation.requirements, recommendation.config
    if config is None:
        machines = ", ".join(recommendation.machines)
        where = f" on the requested machine; machines with one: {machines}" if machines else ""
        yield sanitize_line(f"No matching configuration was timed{where}.")
        return
    if not recommendation.choices:
        yield "No measured mechanism satisfies the requirements."
    yield sanitize_line(f"Measured configuration: {_format_config(config)}.")
    if recommendation.local_machine not in (None, config["machine"]) and not requirements.machine:
        yield sanitize_line(
            f"This machine, {recommendation.local_machine}, has timings of fewer than two mechanisms at a matching "
            "configuration; the machine with most timings was used instead."
        )
    if len(recommendation.machines) > 1:
        other_machines = ", ".join(name for name in recommendation.machines if name != config["machine"])
        yield sanitize_line(f"Machines are not ranked together; select another with --machine NAME: {other_machines}.")
    if not requirements.has_quality_bounds:
        yield "No quality bound was given; set one with --max-error, --max-ppl-ratio or --min-accuracy TASK=SHARE."
    if any(TIE_MARK in row[0] for row in as_rows(recommendation)):
        yield f"{TIE_MARK}: not significantly different, as the 95% interval of the ratio of their times contains 1."
    if any(choice.cost.speedup is not None for choice in recommendation.choices):
        yield sanitize_line(f"Speedups are over {config['baseline']}.")
    if any(
        figure.sure is False for choice in recommendation.choices for figure in choice.quality
    ) or _mentions_uncertainty(recommendation.left_out.values()):
        yield (
            f"{UNCERTAIN}: the value decides, but its 95% interval (over seeds, text segments or questions) "
            "extends to the other side of the bound."
        )
    for reason, labels in _group_by_reason(recommendation.left_out).items():
        yield sanitize_line(f"left out: {', '.join(labels)}: {reason}")


def _mentions_uncertainty(reasons: Iterable[str]) -> bool:
    return any(f"; {UNCERTAIN}: " in reason for reason in reasons)


def _format_config(config: Mapping[str, Any]) -> str:
    batch, heads, head_dim = (_format_count(config[name]) for name in ("batch", "heads", "head_dim"))
    shape = f"batch {batch}, {heads} heads of {head_dim}"
    threads = f"{_format_count(config['threads'])} threads" if config["threads"] != 1 else "1 thread"
    parts = [shape, config["dtype"], threads if config["device"] == "cpu" else config["device"], config["machine"]]
    parts += ["caches cold"] if config["cache"] == "cold" else []
    parts += ["through torch.compile"] if config["compiled"] else []
    return ", ".join(map(str, parts)) + (", causal" if config["causal"] else ", not causal")


def _format_count(value: Any) -> str:
    return units.integer(value) if units.is_present(value) else "any number of"


def _group_by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for label, reason in left_out.items():
        groups.setdefault(reason, []).append(label)
    return groups


# -- runs to measure -----------------------------------------------------------------------------------------------


def list_commands(requirements: Requirements) -> Iterator[str]:
    """Yield the commands whose runs would allow a recommendation."""
    suite, part = SUITE_PARTS[requirements.mode]
    part = SHARED_KV_PART if requirements.mode == "decode" and requirements.kv_heads else part
    axes = [f"--seq-len {requirements.seq_len}", f"--device {requirements.device}"]
    for name in ("dtype", "batch", "heads", "kv_heads", "head_dim", "threads"):
        value = getattr(requirements, name)
        axes += [f"--{name.replace('_', '-')} {value}"] if value is not None else []
    axes += (
        [f"--causal {str(requirements.causal).lower()}"]
        if requirements.causal is not None and suite != "decode"
        else []
    )
    axes += (
        ["--variant full,linear"] if requirements.mode == "prefill" and requirements.kv_heads else []
    )  # these support any number
    yield f"efficient-attn run {suite} {' '.join(axes)} --part {shlex.quote(part)} --out results/local/asked"
    if requirements.max_error is not None:
        yield "efficient-attn run fidelity_long --out results/local/errors"
    if requirements.max_ppl_ratio is not None:
        yield "efficient-attn run swap --out results/local/swapped"
    for task in requirements.min_accuracy:
        suite = "retrieval" if task == "retrieval" else "accuracy"
        yield f"efficient-attn run {suite} --task {task} --out results/local/{task}"


# -- JSON ----------------------------------------------------------------------------------------------------------


def as_json(recommendation: Recommendation) -> dict[str, Any]:
    """Return the recommendation as JSON data, with the rows behind each choice."""
    config = recommendation.config and {
        name: value for name, value in recommendation.config.items() if value is not None
    }
    return {
        "question": recommendation.requirements.as_data(),
        "place": config,
        "choices": [_choice_as_data(choice) for choice in recommendation.choices],
        "left_out": dict(recommendation.left_out),
        "machines": list(recommendation.machines),
        "commands": [] if recommendation.choices else list(list_commands(recommendation.requirements)),
    }


def _choice_as_data(choice: RankedMechanism) -> dict[str, Any]:
    cost = choice.cost
    return {
        "rank": choice.rank,
        "mechanism": choice.label,
        "how": cost.basis,
        "between": cost.between and list(cost.between),
        "speedup": _estimate_as_data(cost.speedup),
        "latency_ms": _estimate_as_data(cost.latency),
        "peak_memory_bytes": _estimate_as_data(cost.memory),
        "state_bytes": _estimate_as_data(cost.state),
        "loss": choice.error_text,
        "quality": [asdict(figure) | {"runs": list(figure.runs)} for figure in choice.quality],
        "rows": [asdict(source) for source in _drop_repeated(cost.sources)],
    }


def _estimate_as_data(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _drop_repeated(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))
