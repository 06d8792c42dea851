"""Tables of crossover lengths, and of our mechanisms next to those of other libraries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ... import units
from ...results.stats import Estimate
from ...spec import format_label
from .. import formatting
from ..answers.crossovers import Crossover, format_crossover
from ..answers.decision_table import DecisionTable
from ..answers.pooled_times import Z_95, estimate_log_error
from ..gather import Frame
from ..tables import ReportCell, ReportTable
from .picker import EXACT, USE_TITLES
from .scoreboards import Scoreboard
from .site_data import PEER_PREFIX
from .site_names import capitalise, format_machine_config

LIBRARY_CAPTION = "Our mechanisms compared with other libraries"
LIBRARY_COLUMNS = ("Speedup", "Other library", "Machine", "Range", "Configurations", "Faster", "Slower")


def list_crossovers(tables: Iterable[DecisionTable], machines: Mapping[str, str]) -> list[Scoreboard]:
    """For each use, the speedup of each mechanism at each length in the configuration with most speedups over exact
    attention. machines: short names."""
    chosen: dict[str, DecisionTable] = {}
    for table in tables:
        mode = str(table.config["mode"])
        if mode in USE_TITLES and table.baseline == EXACT:
            chosen[mode] = max(chosen.get(mode, table), table, key=_compute_priority)
    return [_make_crossover_table(chosen[mode], machines) for mode in USE_TITLES if mode in chosen]


def _compute_priority(table: DecisionTable) -> tuple[int, str]:
    return sum(len(d.speedups) - 1 for d in table.decisions), str(sorted(map(str, table.config.items())))


def _make_crossover_table(table: DecisionTable, machines: Mapping[str, str]) -> Scoreboard:
    config, lengths = table.config, sorted({n for decision in table.decisions for n in decision.speedups})
    rows = []
    for decision in table.decisions:
        faster_from = _describe_crossover(decision.crossover) if decision.crossover else "no interval"
        speedups = (decision.speedups.get(length) for length in lengths)
        rows.append([ReportCell(decision.label), ReportCell(faster_from), *map(_show_speedup, speedups)])
    caption = f"{capitalise(USE_TITLES[config['mode']])}: {formatting.format_slice(config['mode'], config['causal'])}"
    head = ("Mechanism", "Faster from", *map(units.short_length, lengths))
    return Scoreboard(format_machine_config(config, machines), ReportTable(caption, head, rows, text_columns=2))


def _describe_crossover(crossover: Crossover) -> str:
    text = format_crossover(crossover)
    return f"at most {text.removeprefix('<=')} (shortest measured)" if text.startswith("<=") else text


def _show_speedup(speedup: Estimate | None) -> ReportCell:
    if speedup is None:
        return ReportCell("")
    return ReportCell(units.ratio(speedup.value), mark=formatting.classify_speedup(speedup.low, speedup.high))


def make_library_table(rows: Frame, machines: Mapping[str, str]) -> ReportTable:
    """Compare our mechanisms with those of other libraries that they were timed with, per pair, machine and device.

    machines: short names.
    """
    ours = rows[(rows["status"] == "ok") & (rows["task"] == "speed") & (rows["speedup"] > 0)]
    ours = ours[ours["baseline"].astype(str).str.startswith(PEER_PREFIX)]
    ours = ours[~ours["variant"].astype(str).str.startswith(PEER_PREFIX)]
    speedups: dict[tuple[str, str, str], list[Estimate]] = {}
    for row in ours.to_dict("records"):
        hardware = f"{machines.get(str(row['machine']), units.EMPTY)}, {row['device']}"
        pair = format_label(str(row["variant"]), row["backend"]), str(row["baseline"]), hardware
        ends = (row[f"speedup_{end}"] if units.is_present(row[f"speedup_{end}"]) else None for end in ("low", "high"))
        speedups.setdefault(pair, []).append(Estimate(row["speedup"], *ends))
    body = [_make_library_row(*pair, estimates) for pair, estimates in sorted(speedups.items())]
    return ReportTable(LIBRARY_CAPTION, ("Ours", *LIBRARY_COLUMNS), body, wrapped=("Other library", "Machine"))


def _make_library_row(ours: str, theirs: str, hardware: str, speedups: Sequence[Estimate]) -> list[ReportCell]:
    """Faster, slower: the number of configurations in which ours is significantly faster or slower."""
    ratios = [speedup.value for speedup in speedups]
    ends = f"{units.ratio(min(ratios))} to {units.ratio(max(ratios))}" if len(ratios) > 1 else units.EMPTY
    verdicts = [formatting.classify_speedup(speedup.low, speedup.high) for speedup in speedups]
    counts = len(speedups), verdicts.count("faster"), verdicts.count("slower")
    texts = (units.ratio(*average_speedups(speedups)), theirs, hardware, ends, *map(str, counts))
    return [*map(ReportCell, (ours, *texts))]


def average_speedups(speedups: Sequence[Estimate]) -> Estimate:
    """The geometric mean; its interval covers timing errors only, not the spread over configurations."""
    middle = sum(math.log(speedup.value) for speedup in speedups) / len(speedups)
    errors = [error for speedup in speedups if (error := estimate_log_error(speedup.low, speedup.high)) is not None]
    if len(errors) < len(speedups):
        return Estimate(math.exp(middle))
    half = Z_95 * math.hypot(*errors) / len(errors)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
