"""The verb ``plot``: a figure or a table for a paper."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import UsageError
from . import values
from .output import print_result, write_file
from .runs import choose_runs

if TYPE_CHECKING:
    from ..report.paper.export import FileFormat

FIGURES = ("speed", "memory", "front", "crossover", "loss")
FORMATS = ("pdf", "svg", "png", "tex")
SIZE_FILTERS = ("threads", "batch", "heads", "head_dim")
NAME_FILTERS = ("suite", "machine", "device", "fill", "baseline", "inputs")
FILTERS = (*NAME_FILTERS, *SIZE_FILTERS, "dtype", "mode", "causal")


def add_options(verb: argparse.ArgumentParser) -> None:
    """Options of ``efficient-attn plot``."""
    verb.add_argument("run", metavar="RUN", nargs="+", help="a run's folder")
    verb.add_argument("--figure", choices=FIGURES, required=True, help="what the figure shows")
    verb.add_argument("--format", choices=FORMATS, help="default: the suffix of --out, else pdf; tex is the table")
    verb.add_argument("--out", type=values.path, metavar="FILE", help="output file (default: FIGURE.FORMAT)")
    verb.add_argument("--width", type=values.inches, default=3.3, metavar="SIZE", help="3.3in, 84mm or 240pt (3.3in)")
    verb.add_argument(
        "--only", type=values.list_of(str), action="extend", default=[], metavar="A,B", help="only these mechanisms"
    )
    verb.add_argument(
        "--label", action="append", default=[], metavar="SPEC=NAME", help="name of a mechanism in the figure"
    )
    verb.add_argument("--highlight", action="append", default=[], metavar="SPEC", help="all others are drawn in grey")
    verb.add_argument(
        "--against", choices=("time", "memory", "state"), default="time", help="cost axis of a front (default: time)"
    )
    verb.add_argument(
        "--bare", action="store_true", help="omit the configuration from the picture; the caption names it"
    )
    verb.add_argument("--mode", choices=values.MODES, help="default: the first one with rows")
    verb.add_argument(
        "--causal", action=argparse.BooleanOptionalAction, default=None, help="only causal calls, or no causal ones"
    )
    for name in NAME_FILTERS:
        verb.add_argument(f"--{name}", metavar="NAME", help=f"only rows with this {name}")
    verb.add_argument("--dtype", type=values.dtype, metavar="DTYPE", help="only rows with this dtype")
    for name in SIZE_FILTERS:
        verb.add_argument(
            f"--{name.replace('_', '-')}", type=values.count, metavar="N", help=f"only rows with this {name}"
        )


def plot(args: Namespace) -> int:
    """``efficient-attn plot``: write one figure of a paper."""
    file_format, file = _choose_file(args)
    from ..report.paper.export import FigureRequest, make_figure

    request = FigureRequest(
        figure=args.figure,
        file_format=file_format,
        width=args.width,
        against=args.against,
        show_config=not args.bare,
        only=tuple(args.only),
        highlight=tuple(args.highlight),
        labels=tuple(args.label),
        filters={name: value for name in FILTERS if (value := getattr(args, name)) is not None},
    )
    figure = make_figure(choose_runs("plot", args.run), request)
    write_file(file, figure.data)
    data = {"file": str(file), "caption": figure.caption, "place": figure.config_text, "shown": figure.labels}
    data |= {"left_out": figure.left_out, "others": figure.alternatives}
    lines = [f"{'table' if file_format == 'tex' else 'figure'}: {file}", f"caption: {figure.caption}"]
    if figure.left_out:
        lines.append(f"left out: {', '.join(figure.left_out)}; choose with --only")
    if figure.alternatives:
        lines += ["measured as well:", *(f"  {text}" for text in figure.alternatives)]
    return print_result(args, data, lines)


def _choose_file(args: Namespace) -> tuple[FileFormat, Path]:
    """The format and the file. Raises `UsageError` for a file name with the suffix of another format."""
    suffix = args.out.suffix.lower().removeprefix(".") if args.out else ""
    file_format = args.format or suffix or "pdf"
    if file_format not in FORMATS or (suffix and suffix != file_format):
        suffixes = args.format or ", .".join(FORMATS)
        raise UsageError(f"plot: --out {args.out}: the file name has to end in .{suffixes}")
    return cast("FileFormat", file_format), args.out or Path(f"{args.figure}.{file_format}")
