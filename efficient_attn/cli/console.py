"""Terminal output: tables on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.table import Table

from .. import units

if TYPE_CHECKING:
    from ..bench.case import Case
    from ..patterns import Pattern
    from ..patterns.rasterize import PatternGrid
    from ..peers import Peer
    from ..registry import Info
    from ..resources import ModelShape
    from ..results.rows import Record
    from ..variants import Entry


ABILITY_COLUMNS = ("causal", "decode", "exact")  # traits that `list` shows
# two grids side by side, with frames, fit into 80 columns; a character is about twice as high as wide
GRID_ROWS, GRID_COLUMNS = 16, 32
BLOCKS, BOX = " \u2591\u2592\u2593\u2588", "\u250c\u2500\u2510\u2502\u2514\u2518"
SHADE_LEGENDS = ("1/4", "1/2", "more", "all")  # the largest share of each character but the blank
# for terminals that only support ASCII
ASCII_REPLACEMENTS = str.maketrans(units.EMPTY + units.MICRO + BLOCKS + BOX, "-u .:*#+-+|++")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    """Print a table; columns named in ``right`` are aligned to the right."""
    if title:
        print(title)
    # a pipe has no width: tables are as wide as necessary, so that nothing is cut
    width = None if sys.stdout.isatty() else 200
    console = Console(width=width, highlight=False, emoji=False, markup=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_make_printable(text, sys.stdout) for text in row))
    console.print(table)
    console.print()


def show_catalogue(
    entries: Sequence[Entry], suites: Mapping[str, str], shapes: Sequence[ModelShape], peers: Sequence[Peer]
) -> None:
    """Print the mechanisms, suites, model shapes and peers."""
    rows = []
    for e in entries:
        abilities = ["?" if e.able is None else "yes" if x in e.able else units.EMPTY for x in ABILITY_COLUMNS]
        rows.append([e.name, e.family, *abilities, e.sentence])
    title = "Mechanisms (exact: a softmax over the visible keys)"
    print_table(title, ["name", "family", *ABILITY_COLUMNS, ""], rows)
    print_table("Suites (efficient-attn plan SUITE estimates the time)", ["name", ""], [*map(list, suites.items())])
    print_table(
        "Other libraries, with --plugin", ["name", "plug-in", "library"], [[p.name, p.plugin, p.library] for p in peers]
    )
    shape_rows = [[s.name, str(s.heads), str(s.kv_heads or s.heads), str(s.head_dim), s.source] for s in shapes]
    print_table("Shapes, for --shape", ["name", "heads", "kv heads", "width", "source"], shape_rows)


def show_info(info: Info) -> None:
    """Print the description of a mechanism."""
    print(f"{info.spec} ({info.family}): {info.sentence}\n\n{info.doc}\n")
    rows = [
        ["options", ", ".join(f"{name}={value}" for name, value in info.options.items()) or "none"],
        ["backends", f"{', '.join(info.backends)} (runs {info.backend})"],
        ["growth", f"time {info.growth.time}, memory {info.growth.memory}"],
    ]
    if info.traits.inputs:
        rows += [["inputs", ", ".join(f"{name} (of each {i.side})" for name, i in info.traits.inputs.items())]]
    if lossy := info.traits.describe_lossy_state():
        rows += [["decode state", lossy]]
    rows += [["parameters", str(info.parameters)], ["source", info.source]]
    print_table("", ["", " "], rows)
    trait_rows = [[name, "yes" if claimed else "no", text] for name, (claimed, text) in info.traits.meanings().items()]
    print_table("", ["trait", "claimed", "meaning"], trait_rows)
    if info.pattern is not None:
        for line in format_patterns(_compute_grids(info.pattern, info.traits.directions)):
            print(_make_printable(line, sys.stdout))


def _compute_grids(pattern: Pattern, directions: Sequence[bool]) -> list[PatternGrid]:
    from ..patterns.rasterize import compute_share_grids

    return compute_share_grids(pattern, directions=directions, rows=GRID_ROWS, columns=GRID_COLUMNS)


def format_patterns(grids: Sequence[PatternGrid]) -> list[str]:
    """Lines with pattern grids side by side, and the share of pairs that each keeps."""
    legend = ", ".join(f"{mark} {share}" for mark, share in zip(BLOCKS[1:], SHADE_LEGENDS, strict=True))
    lines = [f"pattern: queries down, keys across; share of pairs: {legend}", ""]
    return [*lines, *("  ".join(parts).rstrip() for parts in zip(*map(_frame_grid, grids), strict=True))]


def _frame_grid(grid: PatternGrid) -> list[str]:
    """One grid with its direction above and its length and share below, all lines of one width."""
    width = grid.allowed_pairs.shape[1]
    left_top, flat, right_top, side, left_bottom, right_bottom = BOX
    rows = ["".join(BLOCKS[_choose_shade(share)] for share in row) for row in grid.shares.tolist()]
    lines = [grid.direction, f"{left_top}{flat * width}{right_top}", *(f"{side}{row}{side}" for row in rows)]
    lines += [f"{left_bottom}{flat * width}{right_bottom}", f"N = {grid.geometry.n}", format_kept_share(grid)]
    return [line.ljust(width + 2) for line in lines]


def _choose_shade(share: float) -> int:
    """The index of a share's character: blank for 0, full for 1, and three shades between."""
    return sum(share > limit for limit in (0, 0.25, 0.5)) + (share >= 1)


def format_kept_share(grid: PatternGrid) -> str:
    """``keeps 23.5% of all pairs``, or of causal pairs; with "about" if only a sample of queries was evaluated."""
    qualifier, scope = "" if grid.exact else "about ", "causal" if grid.geometry.causal else "all"
    return f"keeps {qualifier}{units.percent(grid.share)} of {scope} pairs"


def _make_printable(text: str, stream: TextIO) -> str:
    """Replace characters that the output encoding does not support, in numbers and pictures, by ASCII."""
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return text.translate(ASCII_REPLACEMENTS)
    return text


def info_as_json(info: Info) -> dict[str, Any]:
    """What `show_info` prints, as data."""
    fields = {name: getattr(info, name) for name in info.__dataclass_fields__}
    growth = {"time": info.growth.time, "memory": info.growth.memory}
    fields |= {"traits": asdict(info.traits), "growth": growth, "options": dict(info.options)}
    if info.pattern is not None:
        grids = _compute_grids(info.pattern, info.traits.directions)
        shares, is_exact = {grid.direction: grid.share for grid in grids}, all(grid.exact for grid in grids)
        fields["pattern"] = {"length": grids[0].geometry.n, "kept": shares, "exact": is_exact}
    return fields


def show_plan(cases: Sequence[Case]) -> None:
    """Print the cases of a plan, those that differ only in length in one line."""
    cases_by_columns: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        group, config = case.group, case.group.config
        kv_heads = "" if case.kv_heads in (None, config.heads) else f"/{case.kv_heads}"
        heads = f"{config.heads}{kv_heads} x {config.head_dim}"
        columns = (group.part, config.mode or group.task, config.device, config.dtype, heads, str(case.variant))
        cases_by_columns.setdefault(columns, []).append(case)
    rows = []
    for columns, members in cases_by_columns.items():
        lengths = sorted({case.group.config.seq_len for case in members})
        rows.append([*columns, " ".join(map(str, lengths)), str(len(members))])
    headings = ["part", "measures", "device", "dtype", "heads", "variant", "lengths", "cases"]
    print_table("Plan", headings, rows, right=["cases"])
    print(f"{len(cases)} cases")


def show_cost_estimate(wall_s: float, peak_bytes: int, *, absent: Mapping[str, str] | None = None) -> None:
    """``about 2 min 10 s, peak memory about 1.3 GiB``, rounded to the precision of the estimate.

    absent: devices that this machine does not have, with reasons; they are not estimated.
    """
    if wall_s or not absent:
        print(f"about {units.rough_duration(wall_s)}, peak memory about {units.rough_size(peak_bytes)}")
    for device, reason in (absent or {}).items():
        print(f"{device}: not estimated ({reason})")


# -- while a suite runs --------------------------------------------------------------------------------------------


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[Record, int, int], None]]:
    """Show a progress bar on a terminal, otherwise print a line for each case. Both go to stderr."""
    if not sys.stderr.isatty():
        yield partial(_print_case, time.monotonic())
        return
    from rich import progress

    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn())
    columns += (progress.TextColumn("left"), progress.TimeRemainingColumn(), progress.TextColumn("{task.description}"))
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)

        def update(record: Record, done: int, total: int) -> None:
            bar.update(task, completed=done, description=_format_case(record))

        yield update


def _print_case(start: float, record: Record, done: int, total: int) -> None:
    """Print a line for a finished case, with the time since the start."""
    row = record.row
    result = units.duration(row.latency_ms) if row.latency_ms else row.status
    reason = f" ({row.reason})" if row.status != "ok" and row.reason else ""
    line = f"[{done}/{total}] {time.monotonic() - start:6.1f} s  {_format_case(record)}: {result}{reason}"
    print(_make_printable(line, sys.stderr), file=sys.stderr, flush=True)


def _format_case(record: Record) -> str:
    row = record.row
    details = f"layer {row.layer}" if row.layer is not None else f"n={row.seq_len}{' causal' if row.causal else ''}"
    details += f" batch={row.batch}" if (row.batch or 1) > 1 else ""
    details += f" kv_heads={row.kv_heads}" if row.kv_heads != row.heads and "kv_heads=" not in row.variant else ""
    details += f" {stage}" if (stage := (row.inputs or "").partition(":")[2].partition(":")[2]) else ""
    return f"{row.mode or row.task} {row.variant} {details}"
