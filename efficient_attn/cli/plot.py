"""The verb ``plot``: a figure or a table for a paper."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import UsageError
from . import values
from .output import print_result, write_file
from .runs import choose_runs

if TYPE_CHECKING:
    from ..report.paper.export import FigureFile, FileFormat

FIGURES = ("speed", "memory", "front", "perplexity", "crossover", "error", "ability")
FORMATS = ("pdf", "svg", "png", "tex")
# parsers by column; several values of one are shown side by side
FILTERS: dict[str, Any] = {
    **dict.fromkeys(("suite", "machine", "device", "fill", "baseline", "inputs", "task"), str),
    **dict.fromkeys(("threads", "batch", "heads", "head_dim"), values.count),
    "dtype": values.dtype,
    "mode": values.one_of("mode", values.MODES),
    "seq_len": values.length,
}
MAX_ALTERNATIVES = 8  # other configurations that are listed


def add_options(add: Callable[..., object]) -> None:
    """Options of ``efficient-attn plot``."""
    add("run", metavar="RUN", nargs="+", help="a run's folder")
    add("--figure", choices=FIGURES, type=_read_figure, required=True, help="what the figure shows")
    add("--format", choices=FORMATS, help="default: the suffix of --out, else pdf; tex is the table")
    add("--out", type=values.path, metavar="FILE", help="output file (default: FIGURE.FORMAT)")
    add("--width", type=values.inches, default=3.3, metavar="SIZE", help="3.3in, 84mm or 240pt (3.3in)")
    add("--only", type=values.list_of(str), action="extend", default=[], metavar="A,B", help="only these mechanisms")
    add("--label", action="append", default=[], metavar="SPEC=NAME", help="name of a mechanism in the figure")
    add("--highlight", type=values.list_of(str), action="extend", default=[], metavar="A,B", help="make others grey")
    add("--against", choices=("time", "memory", "state"), default="time", help="cost axis (default: time)")
    add("--bare", action="store_true", help="omit the configuration from the picture; the caption names it")
    for name, parse in FILTERS.items():
        option, kind = name.replace("_", "-"), values.list_of(parse)
        help_text = f"only rows with this {option}; of several, one panel or group of columns each"
        add(f"--{option}", type=kind, action="extend", metavar="A,B", help=help_text)
    for option, is_causal, kind_text in (("--causal", True, "causal"), ("--no-causal", False, "bidirectional")):
        add(option, dest="causal", action="append_const", const=is_causal, help=f"only {kind_text} calls; or both")


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
        filters={name: accepted for name in (*FILTERS, "causal") if (accepted := getattr(args, name)) is not None},
    )
    figure = make_figure(choose_runs("plot", args.run), request)
    files = [file.with_stem(f"{file.stem}-{number}") for number in range(1, len(figure.pages) + 1)]
    files = files if len(files) > 1 else [file]
    for page_file, page in zip(files, figure.pages, strict=True):
        write_file(page_file, page)
    data = {"file": str(files[0]), "files": [*map(str, files)], "caption": figure.caption, "notes": figure.notes}
    data |= {"place": figure.config_text, "shown": figure.labels, "left_out": figure.left_out}
    data |= {"missing": figure.missing, "others": figure.alternatives}
    kind = "table" if file_format == "tex" else "figure"
    return print_result(args, data, [*(f"{kind}: {page_file}" for page_file in files), *_describe(figure, args.only)])


def _describe(figure: FigureFile, only: Sequence[str]) -> list[str]:
    """The caption, and what the figure does not show."""
    lines = [f"caption: {figure.caption}", *(f"note: {note}" for note in figure.notes)]
    if figure.left_out and not only:
        lines.append("choose the mechanisms to show with --only")
    lines += [f"no data: {text}" for text in figure.missing]
    if others := figure.alternatives:
        lines += ["measured as well:", *(f"  {text}" for text in others[:MAX_ALTERNATIVES])]
    if len(others) > MAX_ALTERNATIVES:
        lines.append(f"  {len(others) - MAX_ALTERNATIVES} more; --json lists all")
    return lines


def _read_figure(text: str) -> str:
    """The name of a figure; version 0.2 called ``error`` ``loss``."""
    if text != "loss":
        return text
    print("plot: --figure loss is now --figure error; version 0.3 removes loss", file=sys.stderr)
    return "error"


def _choose_file(args: Namespace) -> tuple[FileFormat, Path]:
    """The format and the file. Raises `UsageError` for a file name with the suffix of another format."""
    suffix = args.out.suffix.lower().removeprefix(".") if args.out else ""
    file_format = args.format or suffix or "pdf"
    if file_format not in FORMATS or (suffix and suffix != file_format):
        suffixes = args.format or ", .".join(FORMATS)
        raise UsageError(f"plot: --out {args.out}: the file name has to end in .{suffixes}")
    return cast("FileFormat", file_format), args.out or Path(f"{args.figure}.{file_format}")
