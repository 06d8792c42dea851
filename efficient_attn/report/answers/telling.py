"""A recommendation as lines for people and as data for programs; what is measured and what is interpolated never looks
alike in either."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ... import units
from ...results.cleaning import clean
from ...results.stats import Estimate
from .quality import DOUBT, Found
from .questions import Question
from .recommending import Choice, Recommendation

COLUMNS = ("rank", "mechanism", "speedup", "time", "memory", "state", "what it loses", "how it is known")
RIGHT = ("rank", "speedup", "time", "memory", "state")
PARTS = {  # of suites that time a mode
    "forward": ("quickstart", "length"),
    "forward_backward": ("quickstart", "training"),
    "prefill": ("decode", "prompts"),
    "decode": ("decode", "contexts"),
}
GROUPED = "key-value heads"  # the part of decode that takes any number of them
TIE = "="  # beside a rank that several share


def as_rows(found: Recommendation) -> list[list[str]]:
    """A line a choice, the fastest first."""
    shared = [choice.rank for choice in found.choices]
    tied = [shared.count(choice.rank) > 1 for choice in found.choices]
    rows = (_row(choice, tie, found.question) for choice, tie in zip(found.choices, tied, strict=True))
    return [[clean(text) for text in row] for row in rows]


def _tell_found(found: Found, question: Question) -> str:
    return f"{found.text} ({'; '.join(filter(None, (found.on, found.tell_apart(question), found.tell_doubt())))})"


def _row(choice: Choice, tied: bool, question: Question) -> tuple[str, ...]:
    taken = choice.taken
    own = [_tell_found(one, question) for one in choice.quality if one.what != "error" and one.value != 1.0]
    return (
        f"{choice.rank}{TIE if tied else ''}",
        choice.label,
        _tell(taken.speedup, units.ratio),
        _tell(taken.latency, units.duration),
        units.size(taken.memory.value) if taken.memory else units.NONE,
        units.size(taken.state.value) if taken.state else units.NONE,
        "; ".join([choice.loss, *own]),
        _tell_how(choice),
    )


def _tell(found: Estimate | None, write: Any) -> str:
    return units.NONE if found is None else write(found.value, found.low, found.high)


def _tell_how(choice: Choice) -> str:
    taken = choice.taken
    if taken.between is None:
        return "measured"
    return f"INTERPOLATED between {' and '.join(f'{end:,}' for end in taken.between)}"


def conclude(found: Recommendation) -> Iterator[str]:
    """What the table holds for, what was left out and why, and what the words mean."""
    question, place = found.question, found.place
    if place is None:
        where = f"; machines that were: {', '.join(found.machines)}" if found.machines else ""
        yield clean(f"Nothing was timed at such a place{where}.")
        return
    if not found.choices:
        yield "No mechanism is known to keep this."
    yield clean(f"Holds for {_tell_place(place)}.")
    if found.here not in (None, place["machine"]) and not question.machine:
        yield clean(f"This machine, {found.here}, has no times of two mechanisms there; that one has most.")
    if len(found.machines) > 1:
        others = ", ".join(name for name in found.machines if name != place["machine"])
        yield clean(f"Unlike machines are not ranked together; --machine NAME asks another: {others}.")
    if not question.judged:
        yield "No bound on what is lost was given: --max-error, --max-ppl-ratio or --min-accuracy TASK=SHARE sets one."
    if any(TIE in row[0] for row in as_rows(found)):
        yield f"{TIE} beside a rank: cannot be told apart, as the 95% interval of the ratio of their times holds 1."
    if any(choice.taken.speedup is not None for choice in found.choices):
        yield clean(f"Speedups are over {place['baseline']}.")
    if any(one.sure is False for choice in found.choices for one in choice.quality) or _doubts(found.left_out.values()):
        yield (
            f"{DOUBT}: the value decides, but not all of its 95% interval, over seeds, segments of text or questions, "
            "lies on the same side of the bound."
        )
    for why, labels in _group(found.left_out).items():
        yield clean(f"left out: {', '.join(labels)}: {why}")


def _doubts(reasons: Iterable[str]) -> bool:
    return any(f"; {DOUBT}: " in why for why in reasons)


def _tell_place(place: Mapping[str, Any]) -> str:
    shape = f"batch {_whole(place['batch'])}, {_whole(place['heads'])} heads of {_whole(place['head_dim'])}"
    threads = f"{_whole(place['threads'])} threads" if place["threads"] != 1 else "1 thread"
    parts = [shape, place["dtype"], threads if place["device"] == "cpu" else place["device"], place["machine"]]
    parts += ["caches cold"] if place["cache"] == "cold" else []
    parts += ["through torch.compile"] if place["compiled"] else []
    return ", ".join(map(str, parts)) + (", causal" if place["causal"] else ", not causal")


def _whole(value: Any) -> str:
    return units.whole(value) if units.there(value) else "any number of"


def _group(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for label, why in left_out.items():
        groups.setdefault(why, []).append(label)
    return groups


# -- what would tell -----------------------------------------------------------------------------------------------


def list_commands(question: Question) -> Iterator[str]:
    """The runs after which the question could be answered."""
    suite, part = PARTS[question.mode]
    part = GROUPED if question.mode == "decode" and question.kv_heads else part
    axes = [f"--seq-len {question.seq_len}", f"--device {question.device}"]
    for name in ("dtype", "batch", "heads", "kv_heads", "head_dim", "threads"):
        value = getattr(question, name)
        axes += [f"--{name.replace('_', '-')} {value}"] if value is not None else []
    axes += [f"--causal {str(question.causal).lower()}"] if question.causal is not None and suite != "decode" else []
    axes += ["--variant full,linear"] if question.mode == "prefill" and question.kv_heads else []  # that take any
    yield f"efficient-attn run {suite} {' '.join(axes)} --part {shlex.quote(part)} --out results/local/asked"
    if question.max_error is not None:
        yield "efficient-attn run fidelity_long --out results/local/errors"
    if question.max_ppl_ratio is not None:
        yield "efficient-attn run swap --out results/local/swapped"
    for task in question.min_accuracy:
        suite = "retrieval" if task == "retrieval" else "accuracy"
        yield f"efficient-attn run {suite} --task {task} --out results/local/{task}"


# -- for programs --------------------------------------------------------------------------------------------------


def as_json(found: Recommendation) -> dict[str, Any]:
    """The same as JSON, with the rows that speak for each choice."""
    place = found.place and {name: value for name, value in found.place.items() if value is not None}
    return {
        "question": found.question.as_data(),
        "place": place,
        "choices": [_as_data(choice) for choice in found.choices],
        "left_out": dict(found.left_out),
        "machines": list(found.machines),
        "commands": [] if found.choices else list(list_commands(found.question)),
    }


def _as_data(choice: Choice) -> dict[str, Any]:
    taken = choice.taken
    return {
        "rank": choice.rank,
        "mechanism": choice.label,
        "how": taken.how,
        "between": taken.between and list(taken.between),
        "speedup": _estimate(taken.speedup),
        "latency_ms": _estimate(taken.latency),
        "peak_memory_bytes": _estimate(taken.memory),
        "state_bytes": _estimate(taken.state),
        "loss": choice.loss,
        "quality": [asdict(one) | {"runs": list(one.runs)} for one in choice.quality],
        "rows": [asdict(source) for source in _distinct(taken.sources)],
    }


def _estimate(found: Estimate | None) -> dict[str, float | None] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}


def _distinct(found: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(found))
