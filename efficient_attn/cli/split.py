"""Parts of a plan on the command line: ``plan --split`` writes them, and ``run --plan-part`` runs one."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from .output import print_result

if TYPE_CHECKING:
    from ..bench.case import Case
    from ..bench.planning.plan_split import PlanPart

# options of `plan` that a part does not repeat: those with a value, and flags
ONLY_PLAN, ONLY_PLAN_FLAGS = ("--split", "--out", "--jobs"), ("--json",)
ONLY_RUN = ("out", "resume", "retry_failed", "timeout", "memory_limit", "start_method", "jobs", "turns", "json")
ONLY_RUN += ("engine", "address", "only_machine", "node_timeout", "nodes", "slurm")


def write_parts(args: Namespace, cases: Sequence[Case]) -> int:
    """``efficient-attn plan SUITE --split N --out DIR``: write the parts, and print the commands that run them."""
    from ..bench.planning.plan_split import split_plan

    if args.out is None:
        raise UsageError(f"plan: --split {args.split} needs --out DIR, for its files")
    parts = split_plan(cases, args.split, list(select_arguments(args.arguments[1:], ONLY_PLAN, ONLY_PLAN_FLAGS)))
    files = format_parts(parts, args.out)
    write_files(files, args.out)
    counts = [len(part.cases) for part in parts]
    lines = [f"{file}: {count} case{'s' if count > 1 else ''}" for file, count in zip(files, counts, strict=True)]
    lines.append(f"on each machine, all of one kind: efficient-attn run --plan-part {args.out / '1.json'} --out runs/1")
    lines.append("then: efficient-attn merge runs/* --out merged")
    data = {"plan": parts[0].plan, "parts": {str(file): count for file, count in zip(files, counts, strict=True)}}
    return print_result(args, data, lines)


def read_planned(args: Namespace, load: Callable[[str], list[str]]) -> tuple[Namespace, PlanPart]:
    """The options of ``run --plan-part FILE``, with those of the plan, and the part. load: imports the plan's plug-ins.

    Raises `UsageError` for a file that is no part, and for options that the plan has fixed.
    """
    from ..bench.planning.plan_split import read_part

    part = read_part(args.plan_part)
    defaults = vars(args.parser.parse_args(["run"]))
    allowed = {*ONLY_RUN, "plan_part", "plugin", "call", "parser"}
    if fixed := [name for name in defaults if name not in allowed and getattr(args, name) != defaults[name]]:
        option = args.suite if fixed[0] == "suite" else f"--{fixed[0].replace('_', '-')}"
        raise UsageError(f"run: {args.plan_part} fixes the suite and its options; remove {option}")
    planned = args.parser.parse_args(["run", *part.arguments])
    if planned.suite is None:
        raise UsageError(f"{args.plan_part}: not a part of a plan: arguments: no suite")
    registered = {plugin: load(plugin) for plugin in planned.plugin if plugin not in args.registered}
    of_run = {name: getattr(args, name) for name in (*ONLY_RUN, "plan_part")}
    return Namespace(**{**vars(planned), **of_run, "registered": args.registered | registered}), part


def format_parts(parts: Sequence[PlanPart], folder: Path) -> dict[Path, str]:
    """The files of parts in a folder, with their content."""
    return {folder / f"{part.part}.json": part.model_dump_json(indent=1) + "\n" for part in parts}


def write_files(files: Mapping[Path, str], folder: Path) -> None:
    """Write files that do not exist to a folder, or none of them."""
    from ..results import durable

    if existing := [file for file in files if file.exists()]:
        raise UsageError(f"{existing[0]}: exists; choose another --out")
    try:
        durable.make_folder(folder)
        for file, text in files.items():
            durable.replace(file, text.encode())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}; choose another --out") from error


def select_arguments(arguments: Sequence[str], others: Collection[str], other_flags: Collection[str]) -> Iterator[str]:
    """The arguments that belong to the plan. others, other_flags: options that do not, with a value and without."""
    remaining = iter(arguments)
    for argument in remaining:
        if argument in others:
            next(remaining, None)
        elif argument not in other_flags and not argument.startswith(tuple(f"{x}=" for x in others)):
            yield argument
