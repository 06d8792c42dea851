"""The verb ``plot``: a figure or a table for a paper."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import UsageError
from . import values
from .output import print_json, write_file

if TYPE_CHECKING:
    from ..report.paper.export import FileFormat

FIGURES = ("speed", "memory", "front", "crossover", "loss")
FORMATS = ("pdf", "svg", "png", "tex")
SIZES = ("threads", "batch", "heads", "head_dim")
NAMED = ("suite", "machine", "device", "fill", "baseline", "inputs")
FILTERS = (*NAMED, *SIZES, "dtype", "mode", "causal")


def add_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", metavar="RUN", nargs="+", help="a run's folder")
    verb.add_argument("--figure", choices=FIGURES, required=True, help="what it shows")
    verb.add_argument("--format", choices=FORMATS, help="default: as --out ends, else pdf; tex is the table")
    verb.add_argument("--out", type=Path, metavar="FILE", help="where it goes (default: FIGURE.FORMAT)")
    verb.add_argument("--width", type=values.inches, default=3.3, metavar="SIZE", help="3.3in, 84mm or 240pt (3.3in)")
    verb.add_argument(
        "--only",
        type=values.list_of(str),
        action="extend",
        default=[],
        metavar="A,B",
        help="these mechanisms",
    )
    verb.add_argument("--label", action="append", default=[], metavar="SPEC=NAME", help="what one is to be called")
    verb.add_argument("--highlight", action="append", default=[], metavar="SPEC", help="all others are drawn in grey")
    verb.add_argument(
        "--against",
        choices=("time", "memory", "state"),
        default="time",
        help="of a front (default: time)",
    )
    verb.add_argument("--bare", action="store_true", help="leave the place out of the picture: the caption has it")
    verb.add_argument(
        "--mode", choices=("forward", "forward_backward", "prefill", "decode"), help="default: the first of these"
    )
    verb.add_argument("--causal", action=argparse.BooleanOptionalAction, default=None, help="only such calls")
    for name in NAMED:
        verb.add_argument(f"--{name}", metavar="NAME", help=f"only rows of this {name}")
    verb.add_argument("--dtype", type=values.dtype, metavar="DTYPE", help="only rows of this dtype")
    for name in SIZES:
        verb.add_argument(f"--{name.replace('_', '-')}", type=values.count, metavar="N", help="only such rows")


def plot(args: Namespace) -> int:
    form, out = _choose_file(args)
    from ..report.paper.export import FigureRequest, make_figure

    request = FigureRequest(
        figure=args.figure,
        file_format=form,
        width=args.width,
        against=args.against,
        show_config=not args.bare,
        only=tuple(args.only),
        highlight=tuple(args.highlight),
        labels=tuple(args.label),
        filters={
            name: value
            for name in (*NAMED, *SIZES, "dtype", "mode", "causal")
            if (value := getattr(args, name)) is not None
        },
    )
    made = make_figure([Path(run) for run in args.run], request)
    write_file(out, made.data)
    if args.json:
        data = {"file": str(out), "caption": made.caption, "place": made.config_text, "shown": made.labels}
        return print_json(data | {"left_out": made.left_out, "others": made.alternatives})
    print(f"{'table' if form == 'tex' else 'figure'}: {out}", f"caption: {made.caption}", sep="\n")
    if made.left_out:
        print(f"left out: {', '.join(made.left_out)}; choose with --only")
    if made.alternatives:
        print("measured as well:", *made.alternatives, sep="\n  ")
    return 0


def _choose_file(args: Namespace) -> tuple[FileFormat, Path]:
    """The format and the file, which must not contradict each other."""
    ending = args.out.suffix.lower().removeprefix(".") if args.out else ""
    form = args.format or ending or "pdf"
    if form not in FORMATS or (ending and ending != form):
        message = f"plot: --out {args.out}: its ending has to be .{args.format or ', .'.join(FORMATS)}"
        raise UsageError(message)
    return cast("FileFormat", form), args.out or Path(f"{args.figure}.{form}")
