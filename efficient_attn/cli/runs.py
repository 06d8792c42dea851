"""The verbs ``runs`` and ``clean``: list local runs, and remove files that can be generated again."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import units
from ..errors import UsageError
from .output import print_json

RESULTS = Path("results")
LOCAL_RUNS = RESULTS / "local"
COLUMNS = ("run", "suite", "started", "finished", "cases", "size")


def add_runs_options(add: Callable[..., object]) -> None:
    """Options of ``efficient-attn runs``."""
    add("folder", metavar="DIR", nargs="?", type=Path, default=LOCAL_RUNS, help=f"of runs (default: {LOCAL_RUNS})")


def add_clean_options(add: Callable[..., object]) -> None:
    """Options of ``efficient-attn clean``."""
    add_runs_options(add)
    add("--dry-run", action="store_true", help="only print what would be removed")


def runs(args: Namespace) -> int:
    """``efficient-attn runs``: list the runs in a folder."""
    from ..report.run_folders import list_runs
    from . import console

    run_folders = list_runs(args.folder)
    if args.json:
        return print_json([run.as_data() for run in run_folders])
    rows = [
        [
            str(run.folder),
            run.suite,
            run.started[:16].replace("T", " "),
            "yes" if run.finished else "no: --resume continues",
            ", ".join(f"{count} {status}" for status, count in sorted(run.statuses.items())),
            units.size(run.size),
        ]
        for run in run_folders
    ]
    console.print_table("", COLUMNS, rows, right=("size",))
    return 0


def clean(args: Namespace) -> int:
    """``efficient-attn clean``: remove generated pages, plots and tables, and checkpoints of finished runs."""
    from ..report.run_folders import find_removable_files, list_runs, remove_derived_files

    removable = {}
    for run in list_runs(args.folder):
        paths = find_removable_files(run)
        freed = sum(path.lstat().st_size for path in paths)
        if paths and not args.dry_run:
            paths = remove_derived_files(run)
        if paths:
            removable[str(run.folder)] = {"files": [str(path) for path in paths], "bytes": freed}
    if args.json:
        return print_json({"dry_run": args.dry_run, "runs": removable})
    outcome = "would be removed" if args.dry_run else "removed"
    for folder, facts in removable.items():
        print(f"{folder}: {len(facts['files'])} files {outcome}, {units.size(facts['bytes'])}")
    total = units.size(sum(facts["bytes"] for facts in removable.values())) if removable else "nothing"
    print(f"{total} {outcome}; rows are kept, and `efficient-attn report RUN` renders pages again")
    return 0


def choose_runs(verb: str, named: Sequence[str], *patterns: str, benchmark_files: bool = False) -> list[Path]:
    """The named runs, otherwise those in ``results/`` whose row files match a pattern.

    A name that is no run, such as a file that ``results/*`` matches, is skipped with one line on stderr. Raises
    `UsageError` if none is left. benchmark_files: whether JSON files of pytest-benchmark are runs.
    """
    if not named:
        folders = sorted({file.parent for pattern in patterns for file in RESULTS.glob(pattern)})
        if not folders:
            raise UsageError(f"{verb}: no runs in results/ here; name some: efficient-attn {verb} RUN...")
        return folders
    from ..results.sanitize import sanitize_line
    from ..results.shards import ROWS_FILE, list_shards

    paths = [Path(run) for run in named]
    others = [path for path in paths if not (list_shards(path) or (benchmark_files and path.suffix == ".json"))]
    if len(others) == len(paths):
        raise UsageError(f"{', '.join(map(str, others))}: no run here (no {ROWS_FILE})")
    for path in others:
        print(f"efficient-attn: {sanitize_line(str(path))}: skipped, no run here (no {ROWS_FILE})", file=sys.stderr)
    return [path for path in paths if path not in others]
