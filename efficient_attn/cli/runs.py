"""The verbs ``runs`` and ``clean``: list local runs, and remove files that can be generated again."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path

from .. import units
from .output import print_json

LOCAL_RUNS = Path("results/local")
COLUMNS = ("run", "suite", "started", "finished", "cases", "size")


def add_options(verb: argparse.ArgumentParser, *, removes: bool) -> None:
    """Options of ``efficient-attn runs``; removes: those of ``runs --prune`` as well."""
    verb.add_argument(
        "folder", metavar="DIR", nargs="?", type=Path, default=LOCAL_RUNS, help=f"of runs (default: {LOCAL_RUNS})"
    )
    if removes:
        verb.add_argument("--dry-run", action="store_true", help="only print what would be removed")


def runs(args: Namespace) -> int:
    """``efficient-attn runs``: list the runs in a folder."""
    from ..report.run_folders import list_runs
    from . import console

    run_folders = list(list_runs(args.folder))
    if args.json:
        return print_json([run_folder.as_data() for run_folder in run_folders])
    rows = [
        [
            str(run_folder.folder),
            run_folder.suite,
            run_folder.started[:16].replace("T", " "),
            "yes" if run_folder.finished else "no: --resume goes on",
            ", ".join(f"{count} {status}" for status, count in sorted(run_folder.statuses.items())),
            units.size(run_folder.size),
        ]
        for run_folder in run_folders
    ]
    console.print_table("", COLUMNS, rows, right=("size",))
    return 0


def clean(args: Namespace) -> int:
    """Remove what can be generated again: pages, plots, tables, and checkpoints of finished runs."""
    from ..report.run_folders import find_removable_files, list_runs, remove_derived_files

    removable = {}
    for run_folder in list_runs(args.folder):
        paths = find_removable_files(run_folder)
        freed = sum(path.lstat().st_size for path in paths)
        if paths and not args.dry_run:
            paths = remove_derived_files(run_folder)
        if paths:
            removable[str(run_folder.folder)] = {"files": [str(path) for path in paths], "bytes": freed}
    if args.json:
        return print_json({"dry_run": args.dry_run, "runs": removable})
    outcome = "would be removed" if args.dry_run else "removed"
    for folder, facts in removable.items():
        print(f"{folder}: {len(facts['files'])} files {outcome}, {units.size(facts['bytes'])}")
    total = units.size(sum(facts["bytes"] for facts in removable.values())) if removable else "nothing"
    print(f"{total} {outcome}; rows are kept, and `efficient-attn report RUN` renders pages again")
    return 0
