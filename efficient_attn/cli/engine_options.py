"""Options of ``run`` about where cases are measured: on this machine, on the nodes of a Ray cluster, or by Slurm."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from . import values
from .split import format_parts, select_arguments, write_files

if TYPE_CHECKING:
    from ..bench.case import Case
    from ..bench.nodes.cluster_run import Nodes

# options by the engine that has them
OF_RAY, OF_SLURM = ("address", "only_machine", "node_timeout"), ("nodes", "slurm")
OF_PARTS = ("timeout", "memory_limit", "start_method", "jobs")  # passed on to the runs of parts
# options of `run` that do not belong to a plan: with a value, and flags
WITH_VALUE = ("--out", "--turns", "--engine", *(f"--{name.replace('_', '-')}" for name in OF_RAY + OF_SLURM + OF_PARTS))
FLAGS = ("--resume", "--retry-failed", "--json")


def add_options(add: Callable[..., object]) -> None:
    """The options."""
    engine_help = "where cases are measured: this machine, or the nodes of a cluster (docs: clusters)"
    add("--engine", choices=("local", "ray", "slurm"), default="local", help=engine_help)
    address_help = "HOST:PORT of a Ray cluster, or auto (default: a cluster is started on this machine)"
    add("--address", metavar="ADDRESS", help=address_help)
    machine_help = "with --engine ray: use only nodes of this class of machines, as `runs` and reports name them"
    add("--only-machine", metavar="CLASS", help=machine_help)
    timeout_help = "with --engine ray: a node that does not answer for so long is lost (default: 60)"
    add("--node-timeout", type=values.seconds, metavar="SECONDS", help=timeout_help)
    add("--nodes", type=values.count, metavar="N", help="with --engine slurm: the number of jobs")
    slurm_help = "with --engine slurm: an option of sbatch, such as partition=gpu; cluster=local tries it here"
    add("--slurm", type=values.name_value, action="append", metavar="NAME=VALUE", help=slurm_help)


def check_options(args: Namespace) -> None:
    """Raise `UsageError` for options of an engine that is not the chosen one."""
    for engine, names in (("ray", OF_RAY), ("slurm", OF_SLURM)):
        for name in names:
            if args.engine != engine and getattr(args, name) is not None:
                raise UsageError(f"run: --{name.replace('_', '-')} needs --engine {engine}")
    if args.engine != "local" and args.turns is not None:
        raise UsageError(f"run: --turns does not go with --engine {args.engine}")
    if args.engine == "slurm" and (args.plan_part is not None or args.out is None or args.nodes is None):
        problem = "does not take --plan-part" if args.plan_part is not None else "needs --nodes N and --out DIR"
        raise UsageError(f"run: --engine slurm {problem}")


@contextmanager
def connect_nodes(args: Namespace) -> Iterator[Nodes | None]:
    """The nodes of ``--engine ray``; None for this machine."""
    if args.engine != "ray":
        yield None
        return
    from ..bench.nodes.cluster_run import Nodes
    from ..engines import ray

    # Ray prints to standard output, which is for results, what our warnings of lost nodes say
    with closing(ray.connect(args.address)) as cluster, open(os.devnull, "w") as null, redirect_stdout(null):
        limit: dict[str, Any] = {} if args.node_timeout is None else {"answer_s": args.node_timeout}
        yield Nodes(cluster=cluster, machine=args.only_machine, **limit)


def run_by_slurm(args: Namespace, cases: Sequence[Case]) -> None:
    """Run the parts of a plan as jobs, and merge their runs into ``--out``. Raises `UsageError` if a part has not
    finished, whose rows are kept."""
    from ..bench.planning.plan_split import split_plan
    from ..engines import slurm
    from ..results import merging

    folder = args.out.with_name(f"{args.out.name}.parts")
    arguments = list(select_arguments(args.arguments[1:], WITH_VALUE, FLAGS))
    parts = format_parts(split_plan(cases, args.nodes, arguments), folder)
    if args.resume:
        for path, text in parts.items():
            if not path.is_file() or path.read_text() != text:
                raise UsageError(f"{path}: not a part of this plan; repeat the options, or leave --resume out")
    else:
        write_files(parts, folder)
    runs = [path.with_suffix("") for path in parts]
    commands = [_make_command(args, path, run) for path, run in zip(parts, runs, strict=True)]
    failed: list[str] = []
    with closing(slurm.run_jobs(commands, folder / "logs", dict(args.slurm or ()))) as ended:
        for count, (number, status) in enumerate(ended, 1):
            text = "finished" if status in (0, 1) else f"failed: {status}"  # 1: a case has failed
            failed += [] if status in (0, 1) else [f"{runs[number]} {text}"]
            print(f"[{count}/{len(runs)}] {runs[number]}: {text}", file=sys.stderr)
    if failed:
        raise UsageError(f"{failed[0]}; all rows are kept; continue with --resume (logs: {folder / 'logs'})")
    merging.write(merging.merge(runs), args.out)


def _make_command(args: Namespace, part: Path, run: Path) -> list[str]:
    """The command that runs a part."""
    command = [sys.executable, "-m", "efficient_attn", "run", "--plan-part", str(part), "--out", str(run)]
    command += [x for name in OF_PARTS if (x := _write_option(args, name))]
    command += [x for plugin in args.plugin for x in ("--plugin", plugin)]
    if args.resume and run.is_dir():
        command += ["--resume", "--retry-failed"] if args.retry_failed else ["--resume"]
    return command


def _write_option(args: Namespace, name: str) -> str:
    """An option as it was given, or nothing if it has its default."""
    value, default = getattr(args, name), getattr(args.parser.parse_args(["run"]), name)
    return "" if value == default else f"--{name.replace('_', '-')}={value}"
