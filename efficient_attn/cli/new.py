"""The verb ``new``: write a file with a mechanism or a task to start from."""

from __future__ import annotations

import argparse
import json
import keyword
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template

from ..errors import UsageError
from . import values
from .output import print_result

TEMPLATES = Path(__file__).parent / "templates"
KINDS = ("pattern", "feature-map", "score", "module", "task")
IMPORTED = {*sys.stdlib_module_names, "torch", "numpy", "pandas", "efficient_attn"}  # modules that a file would hide


def add_options(add: Callable[..., object]) -> None:
    """Options of ``efficient-attn new``."""
    add("file", metavar="FILE", type=Path, help="a .py file that does not exist yet")
    kinds = f"{', '.join(KINDS[:-1])} (mechanisms) or {KINDS[-1]}"
    add("--kind", type=_kind, default=KINDS[0], metavar="KIND", help=f"{kinds} (default: {KINDS[0]})")
    add("--name", help="the registered name (default: that of the file)")


def _kind(text: str) -> str:
    if text == "backend":
        raise argparse.ArgumentTypeError("plug-ins cannot register backends yet; write a mechanism with --kind module")
    return values.one_of("kind", KINDS)(text)


def new(args: Namespace) -> int:
    """``efficient-attn new``: write a file to start from, and print the commands to run next."""
    file: Path = args.file
    if file.suffix != ".py":
        raise UsageError(f"new: {file} does not end in .py")
    if file.stem in IMPORTED:
        raise UsageError(f"new: {file} would hide the module {file.stem}; choose another name, such as my_attn.py")
    name = file.stem.replace("-", "_") if args.name is None else args.name
    _check_name(name, args.kind)
    suite = file.with_suffix(".toml")
    templates = {file: f"{args.kind}.py.txt"} | ({suite: "task.toml.txt"} if args.kind == "task" else {})
    class_name = name.title().replace("_", "")
    fields = {"name": name, "class_name": class_name, "file": json.dumps(file.name, ensure_ascii=False)}
    _write({p: Template((TEMPLATES / t).read_text("utf-8")).substitute(fields) for p, t in templates.items()})
    path, suite_path = shlex.quote(str(file)), shlex.quote(str(suite))
    commands = [f"check {path}", f"run quickstart --plugin {path} --variant full,{name}"]
    commands = [f"plan {suite_path}", f"run {suite_path} --quick --task {name}"] if args.kind == "task" else commands
    data = {"files": list(map(str, templates)), "name": name, "next": [f"efficient-attn {c}" for c in commands]}
    lines = [*(f"written: {path}" for path in data["files"]), "next:", *(f"  {command}" for command in data["next"])]
    return print_result(args, data, lines)


def _check_name(name: str, kind: str) -> None:
    """Raise `UsageError` for a name that cannot be registered."""
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(f"new: {name!r} is no name: give lower-case letters, digits and _, such as --name my_attn")
    if kind == "task":
        from ..bench.task_registry import find_task
        from ..tasks import TABLE

        used = {*TABLE, *find_task(TABLE["speed"]).words}  # the words of the others are their names
    else:
        from ..registry import names

        used = {*names()}
    if name in used:
        raise UsageError(f"new: the name {name!r} is already used; give another one, such as --name my_{name}")


def _write(texts: Mapping[Path, str]) -> None:
    """Write new files. Raises `UsageError` if one exists."""
    for path in texts:
        if path.exists() or path.is_symlink():
            raise UsageError(f"new: {path} exists; choose another file, nothing was written")
    for path, text in texts.items():
        try:
            with path.open("x", encoding="utf-8") as stream:
                stream.write(text)
        except (OSError, ValueError) as error:  # ValueError: a null character in the path
            raise UsageError(f"new: {path} cannot be written: {getattr(error, 'strerror', error)}") from error
