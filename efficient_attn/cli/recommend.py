"""The verb ``recommend``: the fastest mechanisms that satisfy requirements, from the rows of runs."""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import fields
from typing import TYPE_CHECKING

from ..errors import UsageError
from . import values
from .output import print_json
from .runs import choose_runs

if TYPE_CHECKING:
    from ..report.answers.recommendation import Recommendation


def add_options(verb: argparse.ArgumentParser) -> None:
    """Options of ``efficient-attn recommend``."""
    verb.add_argument("run", metavar="RUN", nargs="*", help="a run's folder (default: all in results/)")
    verb.add_argument(
        "--seq-len",
        type=values.length,
        action=values.OnceAction,
        required=True,
        metavar="N",
        help="tokens: 16384, 16K or 1M",
    )
    mode_help = "mode; training is forward_backward (default: forward)"
    verb.add_argument("--mode", choices=values.MODES, default="forward", help=mode_help)
    verb.add_argument(
        "--causal", action=argparse.BooleanOptionalAction, default=None, help="only causal calls, or no causal ones"
    )
    verb.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="default: cpu")
    verb.add_argument("--kv-heads", type=values.count, metavar="N", help="key-value heads (default: as many as heads)")
    default = "default: the one with most measurements"
    names = {"heads": "heads", "head-dim": "width of a head", "batch": "batch size", "threads": "threads"}
    for name, text in names.items():
        verb.add_argument(f"--{name}", type=values.count, metavar="N", help=f"{text} ({default})")
    verb.add_argument("--dtype", type=values.dtype, metavar="DTYPE", help=default)
    verb.add_argument("--shape", type=values.shape, metavar="MODEL", help="heads and width of a model: llama3-8b")
    verb.add_argument("--machine", metavar="NAME", help="part of a machine's name (default: this one, if it has rows)")
    for name, kind, unit, text in (
        ("max-error", values.bound, "X", "largest relative error of outputs against exact attention"),
        ("max-ppl-ratio", values.bound, "X", "largest perplexity relative to the original model: 1.05"),
        ("memory", values.size, "SIZE", "largest peak memory of a call: 2GB"),
        ("latency", values.milliseconds, "TIME", "largest time of a call: 50ms, 800us or 2s"),
    ):
        verb.add_argument(f"--{name}", type=kind, action=values.OnceAction, metavar=unit, help=text)
    verb.add_argument(
        "--min-accuracy",
        type=values.task_share,
        action="append",
        default=[],
        metavar="TASK=SHARE",
        help="least accuracy of small models trained for a task",
    )


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
        show_answer(recommendation)
    return 0 if recommendation.choices else 1


def show_answer(recommendation: Recommendation) -> None:
    """Print the ranked mechanisms, those of unknown quality, and the notes."""
    from ..report.answers import recommendation_text
    from . import console

    requirements, right = recommendation.requirements, recommendation_text.RIGHT
    print(f"{requirements.describe()}\n")
    if recommendation.choices:
        console.print_table("", recommendation_text.COLUMNS, recommendation_text.as_rows(recommendation), right=right)
    if recommendation.not_verified:
        title = f"not verified at {requirements.seq_len:,}: of unknown quality, so not ranked"
        rows = recommendation_text.list_unverified_rows(recommendation)
        console.print_table(title, recommendation_text.COLUMNS, rows, right=right)
    print(*recommendation_text.list_notes(recommendation), sep="\n")
    if not recommendation.choices:
        print("To measure what is missing:", *recommendation_text.list_commands(requirements), sep="\n  ")
