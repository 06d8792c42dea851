"""The verb ``recommend``: the fastest mechanisms that satisfy constraints, from the rows of runs."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path

from ..errors import UsageError
from . import values
from .output import print_json

RESULTS = Path("results")  # runs that are read by default


def add_options(verb: argparse.ArgumentParser) -> None:
    """Options of ``efficient-attn recommend``."""
    verb.add_argument("run", metavar="RUN", nargs="*", help="a run's folder (default: all in results/)")
    verb.add_argument(
        "--seq-len",
        type=values.length,
        action=values.OnceAction,
        required=True,
        metavar="N",
        help="tokens, such as 16384 or 16K",
    )
    verb.add_argument(
        "--mode",
        choices=("forward", "forward_backward", "prefill", "decode"),
        default="forward",
        help="mode; training is forward_backward (default: forward)",
    )
    verb.add_argument("--causal", action=argparse.BooleanOptionalAction, default=None, help="only such calls")
    verb.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="default: cpu")
    verb.add_argument("--kv-heads", type=values.count, metavar="N", help="the model's (default: as many as heads)")
    for name, text in (("heads", "heads"), ("head-dim", "a head's width"), ("batch", "rows"), ("threads", "threads")):
        verb.add_argument(
            f"--{name}", type=values.count, metavar="N", help=f"{text} (default: the one with most measurements)"
        )
    verb.add_argument("--dtype", type=values.dtype, metavar="DTYPE", help="default: as before")
    verb.add_argument("--shape", type=values.shape, metavar="MODEL", help="heads and width of a model: llama3-8b")
    verb.add_argument("--machine", metavar="NAME", help="part of a machine's name (default: this one, if it has rows)")
    for name, kind, unit, text in (
        ("max-error", values.bound, "X", "of outputs, against exact attention"),
        ("max-ppl-ratio", values.bound, "X", "largest perplexity relative to the original model: 1.05"),
        ("memory", values.size, "SIZE", "largest peak memory of a call: 2GB"),
        ("latency", values.milliseconds, "TIME", "the most: 50ms, 800us or 2s"),
    ):
        verb.add_argument(f"--{name}", type=kind, action=values.OnceAction, metavar=unit, help=text)
    verb.add_argument(
        "--min-accuracy",
        type=values.task_share,
        action="append",
        default=[],
        metavar="TASK=SHARE",
        help="of models trained",
    )


def recommend(args: Namespace) -> int:
    """``efficient-attn recommend``: mechanisms that meet the requirements, from rows."""
    from ..instruments.environment import name_machine
    from ..report.answers import recommendation_text
    from ..report.answers.recommendation import RecommendationData, check_rows
    from ..report.answers.recommendation import recommend as answer
    from ..report.answers.requirements import Requirements
    from ..report.gather import gather

    names = ("seq_len", "mode", "causal", "device", "kv_heads", "heads", "head_dim", "batch", "threads", "dtype")
    names += ("machine", "max_error", "max_ppl_ratio", "memory")
    min_accuracy = dict(args.min_accuracy)
    if len(min_accuracy) < len(args.min_accuracy):
        raise UsageError("recommend: --min-accuracy names a task twice")
    limits = {name: getattr(args, name) for name in names}
    for name, value in (args.shape.axes if args.shape else {}).items():
        limits[name] = value if limits[name] is None else limits[name]
    requirements = Requirements(**limits, min_accuracy=min_accuracy, latency_ms=args.latency)
    data = RecommendationData.of(gather(_find_runs(args.run)).rows)
    check_rows(data)
    recommendation = answer(data, requirements, local_machine=name_machine())
    if args.json:
        print_json(recommendation_text.as_json(recommendation))
        return 0 if recommendation.choices else 1
    from . import console

    print(f"{requirements.describe()}\n")
    if recommendation.choices:
        console.print_table(
            "",
            recommendation_text.COLUMNS,
            recommendation_text.as_rows(recommendation),
            right=recommendation_text.RIGHT,
        )
    print(*recommendation_text.list_notes(recommendation), sep="\n")
    if not recommendation.choices:
        print("To measure what is missing:", *recommendation_text.list_commands(requirements), sep="\n  ")
    return 0 if recommendation.choices else 1


def _find_runs(named: list[str]) -> list[Path]:
    """The named runs, or all runs in the folder of results."""
    if named:
        return [Path(run) for run in named]
    folders = sorted({file.parent for file in RESULTS.glob("*/rows.jsonl*")} | {*RESULTS.glob("local/*/")})
    folders = [run for run in folders if any(run.glob("rows.jsonl*"))]
    if not folders:
        raise UsageError("recommend: no runs in results/ here; name some: efficient-attn recommend RUN...")
    return folders
