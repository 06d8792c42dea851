"""The verb ``recommend``: the fastest mechanisms that satisfy requirements, from the rows of runs."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import shutil
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from .. import units
from ..errors import UnsupportedError, UsageError
from . import values
from .output import print_json
from .runs import choose_runs

if TYPE_CHECKING:
    from ..report.answers.recommendation import Recommendation
    from ..report.answers.recommendation_text import AnswerRow

NO_BREAK_SPACE = "\xa0"


def add_options(add: Callable[..., object]) -> None:
    """Options of ``efficient-attn recommend``."""
    add("run", metavar="RUN", nargs="*", help="a run's folder (default: all in results/)")
    seq_len_help = "tokens: 16384, 16K or 1M"
    add("--seq-len", type=values.length, action=values.OnceAction, required=True, metavar="N", help=seq_len_help)
    mode_help = "mode; training is forward_backward (default: forward)"
    add("--mode", choices=values.MODES, default="forward", help=mode_help)
    add("--causal", action=argparse.BooleanOptionalAction, default=None, help="only causal calls, or no causal ones")
    add("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="default: cpu")
    add("--kv-heads", type=values.count, metavar="N", help="key-value heads (default: as many as heads)")
    default = "default: the one with most measurements"
    names = {"heads": "heads", "head-dim": "width of a head", "batch": "batch size", "threads": "threads"}
    for name, text in names.items():
        add(f"--{name}", type=values.count, metavar="N", help=f"{text} ({default})")
    add("--dtype", type=values.dtype, metavar="DTYPE", help=default)
    add("--shape", type=values.shape, metavar="MODEL", help="heads and width of a model: llama3-8b")
    add("--machine", metavar="NAME", help="part of a machine's name (default: this one, if it has rows)")
    for name, kind, unit, text in (
        ("max-error", values.bound, "X", "largest relative error of outputs against exact attention"),
        ("max-ppl-ratio", values.bound, "X", "largest perplexity relative to the original model: 1.05"),
        ("memory", values.size, "SIZE", "largest peak memory of a call: 2GB"),
        ("latency", values.milliseconds, "TIME", "largest time of a call: 50ms, 800us or 2s"),
    ):
        add(f"--{name}", type=kind, action=values.OnceAction, metavar=unit, help=text)
    accuracy = "least accuracy of small models trained for a task"
    add("--min-accuracy", type=values.task_share, action="append", default=[], metavar="TASK=SHARE", help=accuracy)


def recommend(args: Namespace) -> int:
    """``efficient-attn recommend``: the fastest mechanisms that satisfy the requirements."""
    from ..instruments.environment import name_machine
    from ..report.answers import recommendation_text
    from ..report.answers.recommendation import recommend as answer
    from ..report.answers.recommendation_data import RecommendationData, check_rows
    from ..report.answers.requirements import Requirements
    from ..report.gather import gather

    min_accuracy = dict(args.min_accuracy)
    if len(min_accuracy) < len(args.min_accuracy):
        raise UsageError("recommend: --min-accuracy names a task twice")
    requested = vars(args) | {"latency_ms": args.latency, "min_accuracy": min_accuracy}
    limits = {field.name: requested[field.name] for field in fields(Requirements)}
    for name, value in (args.shape.axes if args.shape else {}).items():
        limits[name] = value if limits[name] is None else limits[name]
    requirements = Requirements(**limits)
    runs = choose_runs("recommend", args.run, "*/rows.jsonl*", "local/*/rows.jsonl*")
    gathered = gather(runs)
    data = RecommendationData.of(gathered.rows, gathered.sessions, requirements=requirements)
    check_rows(data)
    recommendation = answer(data, requirements, local_machine=name_machine())
    if args.json:
        print_json(recommendation_text.as_json(recommendation))
    else:
        show_answer(recommendation, estimate=partial(_estimate_cost, args.parser))
    return 0 if recommendation.choices else 1


def _estimate_cost(parser: argparse.ArgumentParser, command: str) -> str:
    """``about 3 min on this machine (NAME), peak memory about 1.2 GiB``, as `plan` estimates; or why it cannot."""
    from ..bench.planning.cost_estimate import estimate_cost
    from ..instruments.environment import find_total_memory, name_machine
    from .verbs import plan_cases

    try:
        estimate = estimate_cost(plan_cases(parser.parse_args(shlex.split(command)[1:])))
    except (UsageError, UnsupportedError) as error:
        return f"cannot be planned: {error}"
    if estimate.absent:
        return f"not estimated: {', '.join(estimate.absent.values())}"
    time, size = units.rough_duration(estimate.wall_s), units.rough_size(estimate.peak_bytes)
    excess = ", more than it has: run refuses this" if estimate.peak_bytes > (find_total_memory() or math.inf) else ""
    text = f"about {time} on this machine ({name_machine()}), peak memory about {size}{excess}"
    return "; ".join(filter(None, (text, estimate.describe_over_budget())))


def show_answer(recommendation: Recommendation, estimate: Callable[[str], str], *, width: int | None = None) -> None:
    """Print the ranked mechanisms, those of unknown quality, the notes, and what to measure if nothing is ranked.

    estimate: describes the cost of a command. width: columns, by default those of the terminal, and 80 for a pipe.
    """
    from ..report.answers import recommendation_text

    width = width or shutil.get_terminal_size((80, 24)).columns
    print(textwrap.fill(recommendation.requirements.describe(), width), end="\n\n")
    _show_rankings(recommendation, width)
    if recommendation.choices:
        return
    print("To measure what is missing:")
    for command in recommendation_text.list_commands(recommendation.requirements):
        text = re.sub(r" (?!--)", NO_BREAK_SPACE, command)  # lines break before an option, not before its value
        lines = " \\\n".join(_wrap(text, width - 2, indent=2)).replace(NO_BREAK_SPACE, " ")
        print(lines, *_wrap(estimate(command), width, indent=6), sep="\n")
    if recommendation.nearest:
        nearest = recommendation_text.describe_nearest(recommendation)
        print("", *_wrap(f"Nearest measured, not an answer to your question: {nearest}", width), "", sep="\n")
        _show_rankings(recommendation.nearest, width)


def _show_rankings(recommendation: Recommendation, width: int) -> None:
    from ..report.answers import recommendation_text

    headings = recommendation_text.list_headings(recommendation)
    not_verified = f"not verified at {recommendation.requirements.seq_len:,}: of unknown quality, so not ranked"
    for title, rows in (
        ("", recommendation_text.as_rows(recommendation)),
        (not_verified, recommendation_text.list_unverified_rows(recommendation)),
    ):
        if rows:
            print(*filter(None, (title, *_format_rows(headings, rows, width))), "", sep="\n")
    for note in recommendation_text.list_notes(recommendation):
        print(*_wrap(note, width), sep="\n")


def _format_rows(headings: Sequence[str], rows: Sequence[AnswerRow], width: int) -> Iterator[str]:
    """Lines of a table. Numbers follow a name in its line if it leaves room for them, otherwise in the next line."""
    all_cells = [headings, *(cells for cells, _ in rows)]
    rank_width, name_width, *number_widths = (max(map(len, column)) for column in zip(*all_cells, strict=True))
    indent = " " * (rank_width + 2)
    name_width = min(name_width, max(0, width - len(indent) - sum(number_widths) - 2 * len(number_widths)))
    for (rank, name, *numbers), details in [(headings, ()), *rows]:
        ends = "".join(f"  {text:>{size}}" for text, size in zip(numbers, number_widths, strict=True))
        if len(name) <= name_width:
            yield f"{rank:>{rank_width}}  {name:<{name_width}}{ends}".rstrip()
        else:
            yield from _wrap(f"{rank:>{rank_width}}  {name}", width)
            yield f"{indent}{'':{name_width}}{ends}".rstrip()
        for text in details:
            yield from textwrap.wrap(text, width, initial_indent=f"{indent}  ", subsequent_indent=f"{indent}  ")


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    """Lines of a sentence or command, which break at spaces, or inside words that are longer than a line."""
    start, rest = " " * indent, " " * (indent + 4)
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=rest, break_on_hyphens=False)
