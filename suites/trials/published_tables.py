"""Tables of the published timings, for documents: a line for each mechanism and processor, with 95% intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from efficient_attn import units
from efficient_attn.report.gather import gather
from efficient_attn.results.store import describe_older_protocol

ROOT = Path(__file__).parents[2]
CONFIG = {"device": "cpu", "dtype": "float32", "threads": 1, "batch": 1, "fill": "full"}  # of all tables
HEAD_DIM = 64
CROSSOVER_SUITES = ("quickstart", "promises", "linear", "recurrent", "decode")
CROSSOVER_MODES = ("forward", 4), ("forward_backward", 4), ("decode", 8), ("decode", 4)  # with their numbers of heads
PEER_SUITES = ("sparse_peers", "linear_peers")
# lengths between these, as libraries take multiples of a block; heads; width of a head
PEER_SHAPES = ((1400, 1600, 32, 32), (4400, 4600, 4, 128))
SAME_COLUMNS = ["variant", "processor", "mode", "causal", "seq_len", "heads", "head_dim", "baseline", "note"]
FLAGS = ("compiled", "cuda_graph")
ASCII = str.maketrans({"\N{EN DASH}": "-", "\N{MICRO SIGN}": "u"})


@dataclass(frozen=True)
class Column:
    """A column of a table: mode, length and direction of its calls."""

    heading: str
    mode: str
    seq_len: int
    causal: bool


@dataclass(frozen=True)
class TimingTable:
    """Speedups over a baseline at several configurations. suites: whose runs are used, in the order of mechanisms."""

    suites: tuple[str, ...]
    heads: int
    columns: tuple[Column, ...]
    baseline: str = "full"


def _four_columns(seq_len: int) -> tuple[Column, ...]:
    return tuple(
        Column(f"{heading}{', causal' if causal else ''}", mode, seq_len, causal)
        for mode, heading in (("forward", "forward"), ("forward_backward", "forward and backward"))
        for causal in (False, True)
    )


def _steps(*lengths: int) -> tuple[Column, ...]:
    return tuple(Column(f"{length:,}", "decode", length, True) for length in lengths)


TABLES = {
    "exact": TimingTable(("promises", "quickstart", "sparse"), 4, _four_columns(8192)),
    "linear": TimingTable(("linear",), 4, _four_columns(4096)),
    "decoding": TimingTable(("decode",), 8, _steps(1024, 4096, 16384, 32768, 65536)),
    "grouped": TimingTable(("decode",), 8, _steps(4096, 16384, 32768, 65536), baseline="sdpa_gqa"),
}


@cache
def load_timings() -> pd.DataFrame:
    """The paired timings of all published runs at the usual configuration, newest runs last. Columns besides those of
    rows: run, started, processor, and note, which marks runs of earlier protocols."""
    runs = []
    for path in sorted((ROOT / "results").glob("*/run.json")):
        gathered = gather([path.parent])
        rows = gathered.rows
        rows = rows[(rows["status"] == "ok") & rows["speedup"].notna() & rows["budget"].isna()]
        for column, value in CONFIG.items():
            rows = rows[rows[column] == value]
        for flag in FLAGS:
            rows = rows[~rows[flag].fillna(False).astype(bool)]
        if len(rows):
            started = str(gathered.sessions[-1].get("started"))
            note = describe_older_protocol(*gathered.sessions)
            processors = rows["machine"].map(name_processor)
            runs.append(rows.assign(run=path.parent.name, started=started, note=note, processor=processors))
    return pd.concat(runs).sort_values("started", kind="stable", ignore_index=True)


def make_timing_table(table: TimingTable) -> str:
    """A table in Markdown: for each mechanism, a line for each processor with rows."""
    all_timings = load_timings()
    all_timings = all_timings[(all_timings["heads"] == table.heads) & (all_timings["head_dim"] == HEAD_DIM)]
    all_timings = all_timings[all_timings["baseline"] == table.baseline]
    timings = all_timings[all_timings["suite"].isin(table.suites)]
    lines = [["mechanism", "processor", *(column.heading for column in table.columns), "runs"]]
    lines.append(["---"] * len(lines[0]))
    in_order = sorted(timings["suite"].unique(), key=table.suites.index)
    for variant in pd.concat(timings["variant"][timings["suite"] == suite] for suite in in_order).unique():
        for processor in sorted(timings["processor"].unique()):
            own = timings[(timings["variant"] == variant) & (timings["processor"] == processor)]
            chosen = [choose_row(own, column) for column in table.columns]
            if any(chosen):
                lines.append(_make_line(variant, processor, chosen, all_timings))
    return format_markdown(lines)


def make_peer_table() -> str:
    """Speedups over other libraries, forward: a line for each mechanism and processor, a column for each shape."""
    timings = load_timings()
    timings = timings[timings["suite"].isin(PEER_SUITES) & (timings["mode"] == "forward") & (timings["note"] == "")]
    timings = timings[~timings["variant"].str.contains("^peer_|:backend=")]  # nor what one backend gains over another
    shapes = [f"H = {heads}, N of about {low + 100:,}, D = {dim}" for low, _, heads, dim in PEER_SHAPES]
    lines = [["mechanism", "compared with", "processor", *shapes, "runs"], ["---"] * (4 + len(shapes))]
    for (part, variant, causal, processor), own in timings.groupby(
        ["part", "variant", "causal", "processor"], sort=False
    ):
        chosen = [
            own[own["seq_len"].between(low, high) & (own["heads"] == heads) & (own["head_dim"] == dim)]
            for low, high, heads, dim in PEER_SHAPES
        ]
        if any(map(len, chosen)):
            latest = [rows.iloc[-1].to_dict() if len(rows) else None for rows in chosen]
            name, cells = f"`{variant}`{', causal' if causal else ''}", map(format_timing, latest)
            compared = str(part).removesuffix(", causal")
            lines.append([name, compared, str(processor), *cells, _format_runs(latest, own)])
    return format_markdown(lines)


def make_crossover_table() -> str:
    """From which length on a causal call, a training step and a decode step are faster than exact attention."""
    timings = load_timings()
    timings = timings[timings["suite"].isin(CROSSOVER_SUITES) & (timings["baseline"] == "full")]
    timings = timings[(timings["note"] == "") & timings["causal"] & (timings["head_dim"] == HEAD_DIM)]
    timings = timings[(timings["variant"] != "full") & ~timings["variant"].str.contains(":backend=")]
    lines = [["mechanism", "processor", "forward", "forward and backward", "decode step"], ["---"] * 5]
    for (variant, processor), own in timings.groupby(["variant", "processor"], sort=False):
        cells = {}
        for mode, heads in CROSSOVER_MODES:
            rows = own[(own["mode"] == mode) & (own["heads"] == heads)].drop_duplicates("seq_len", keep="last")
            if mode not in cells or cells[mode] == "-":
                cells[mode] = find_crossover(rows)
        if set(cells.values()) != {"-"}:
            lines.append([f"`{variant}`", str(processor), *cells.values()])
    return format_markdown([*lines[:2], *sorted(lines[2:])])


def find_crossover(rows: pd.DataFrame) -> str:
    """The shortest measured length from which all intervals are above 1; as it may be faster even before, ``at most``
    if that is the first measured one."""
    if rows.empty:
        return "-"
    rows, faster_from = rows.sort_values("seq_len"), None
    for length, low in zip(reversed(rows["seq_len"].tolist()), reversed(rows["speedup_low"].tolist()), strict=True):
        if low <= 1:
            break
        faster_from = length
    if faster_from is None:
        return f"not up to {rows['seq_len'].max():,}"
    return f"{'at most ' if faster_from == rows['seq_len'].min() else ''}{faster_from:,}"


def format_markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, in ASCII."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).translate(ASCII)


def choose_row(timings: pd.DataFrame, column: Column) -> dict[str, Any] | None:
    """The row of a configuration: of the latest run, but of an earlier protocol only if there is no other."""
    rows = timings[(timings["mode"] == column.mode) & (timings["seq_len"] == column.seq_len)]
    rows = rows[rows["causal"] == column.causal].drop_duplicates("run")
    rows = rows[rows["note"] == ""] if (rows["note"] == "").any() else rows
    return rows.iloc[-1].to_dict() if len(rows) else None


def _make_line(
    variant: str, processor: str, chosen: Sequence[dict[str, Any] | None], timings: pd.DataFrame
) -> list[str]:
    notes = dict.fromkeys(row["note"] for row in chosen if row and row["note"])
    name = f"{processor}{''.join(f' ({note})' for note in notes)}"
    return [f"`{variant}`", name, *map(format_timing, chosen), _format_runs(chosen, timings)]


def _format_runs(chosen: Sequence[dict[str, Any] | None], timings: pd.DataFrame) -> str:
    """The runs that cells come from, and the other measurements whose intervals lie apart from those of a cell."""
    shown = [row for row in chosen if row]
    runs = ", ".join(dict.fromkeys(row["run"] for row in shown))
    return "; ".join([runs, *filter(None, (_format_others(row, timings) for row in shown))])


def _format_others(row: dict[str, Any], timings: pd.DataFrame) -> str:
    """``1,024 also 3.21x (2.84-3.63) in quickstart_xeon``; empty if all intervals overlap."""
    same = [timings[name] == row[name] for name in SAME_COLUMNS]
    others = timings[pd.concat(same, axis=1).all(axis=1)]
    others = others[(others["speedup_low"] > row["speedup_high"]) | (others["speedup_high"] < row["speedup_low"])]
    texts = []
    for other in others.to_dict("records"):
        part = f", {other['part']}" if other["run"] == row["run"] else ""
        texts.append(f"{format_timing(other)} in {other['run']}{part}")
    return f"{row['seq_len']:,} also {' and '.join(texts)}" if texts else ""


def format_timing(row: dict[str, Any] | None) -> str:
    """The speedup with its interval; the time of the baseline itself."""
    if row is None:
        return "-"
    if row["variant"] == row["baseline"]:
        return units.duration(row["latency_ms"])
    return units.ratio(row["speedup"], row["speedup_low"], row["speedup_high"])


def name_processor(machine: str) -> str:
    """``AMD Zen 4`` for ``AMD-Zen4-2c-24GiB#5d0574``."""
    name = machine.partition("-2c")[0].replace("-", " ")
    return name.replace("Zen", "Zen ").replace("EmeraldRapids", "Xeon Emerald Rapids")


def make_device_table() -> str:
    """What ran where, in Markdown: a line for each processor or GPU, version of torch and dtype with rows."""
    found: dict[tuple[str, ...], dict[str, int]] = {}  # number of results by suite
    for path in sorted((ROOT / "results").glob("*/rows.jsonl*")):
        data = gather([path.parent])
        torch = next(session["environment"]["torch"] for session in data.sessions)
        results = data.rows[data.rows["status"] == "ok"]
        for (device, machine, dtype, suite), rows in results.groupby(
            ["device", "machine", "dtype", "suite"], observed=True
        ):
            name = name_processor(machine) if device == "cpu" else machine.partition("+")[2].partition("#")[0]
            line = found.setdefault((device, name.replace("_", " "), torch, dtype), {})
            line[suite] = line.get(suite, 0) + len(rows)
    lines = [["device", "name", "torch", "dtype", "suites, with the number of cases that gave a result"], ["---"] * 5]
    for key, counts in sorted(found.items()):
        lines.append([*key, ", ".join(f"{suite} {count}" for suite, count in sorted(counts.items()))])
    return format_markdown(lines)
