"""Tables of crossover lengths: the speedup of each mechanism at each length, for the largest configuration of a use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ... import units
from .. import formatting
from ..answers.crossovers import format_crossover
from ..answers.decision_table import Decision, DecisionTable
from .picker import EXACT, USE_TITLES


@dataclass(frozen=True)
class CrossoverLine:
    """A mechanism. speedups: class and text at each length, empty where it was not measured."""

    label: str
    variant: str
    faster_from: str
    speedups: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CrossoverTable:
    """The mechanisms of one configuration."""

    title: str
    config_text: str
    lengths: tuple[int, ...]
    lines: tuple[CrossoverLine, ...]


def list_crossovers(tables: Iterable[DecisionTable], machines: Mapping[str, str]) -> list[CrossoverTable]:
    """For each use, the configuration with most speedups over exact attention. machines: short names."""
    chosen: dict[str, DecisionTable] = {}
    for table in tables:
        mode = str(table.config["mode"])
        if mode in USE_TITLES and table.baseline == EXACT:
            chosen[mode] = max(chosen.get(mode, table), table, key=_compute_priority)
    return [_make_table(USE_TITLES[mode], chosen[mode], machines) for mode in USE_TITLES if mode in chosen]


def _compute_priority(table: DecisionTable) -> tuple[int, str]:
    return sum(len(d.speedups) - 1 for d in table.decisions), str(sorted(map(str, table.config.items())))


def _make_table(title: str, table: DecisionTable, machines: Mapping[str, str]) -> CrossoverTable:
    config, lengths = table.config, sorted({n for decision in table.decisions for n in decision.speedups})
    config_text = formatting.format_config({**config, "machine": None}, {})
    return CrossoverTable(
        title=f"{title}: {formatting.format_slice(config['mode'], config['causal'])}",
        config_text=", ".join(filter(None, (machines.get(str(config["machine"]), ""), config_text))),
        lengths=tuple(lengths),
        lines=tuple(_make_line(decision, lengths) for decision in table.decisions),
    )


def _make_line(decision: Decision, lengths: Iterable[int]) -> CrossoverLine:
    estimates = [decision.speedups.get(length) for length in lengths]
    speedups = (
        (formatting.classify_speedup(s.low, s.high), units.ratio(s.value)) if s else ("", "") for s in estimates
    )
    faster_from = format_crossover(decision.crossover) if decision.crossover else "no interval"
    return CrossoverLine(decision.label, decision.variant, faster_from, tuple(speedups))
