"""The verb ``recommend``: the fastest mechanisms that satisfy requirements, from the rows of runs."""

from __future__ import annotations

import argparse
import math
import shlex
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from functools import partial

from .. import units
from ..errors import UnsupportedError, UsageError
from . import values
from .output import print_json
from .runs import choose_runs


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
    from ..report.answers.recommendation import RecommendationData, check_rows
    from ..report.answers.recommendation import recommend as answer
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
    data = RecommendationData.of(gather(runs).rows)
    check_rows(data)
    recommendation = answer(data, requirements, local_machine=name_machine())
    if args.json:
        print_json(recommendation_text.as_json(recommendation))
    else:
        from .answer_output import show_answer

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
    excess = ", more than it has" if estimate.peak_bytes > (find_total_memory() or math.inf) else ""
    return f"about {time} on this machine ({name_machine()}), peak memory about {size}{excess}"
