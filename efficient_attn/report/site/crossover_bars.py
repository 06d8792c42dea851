"""Crossover charts: one bar per mechanism along the lengths, hatched where nothing was measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ... import units
from ...results.stats import Estimate
from .. import formatting
from ..answers.crossovers import format_crossover
from ..answers.decision_table import Decision, DecisionTable
from .group_results import USE_BY_MODE
from .picker import USE_WORDS

MAX_TICKS = 7
WIDTH = 600  # of a bar in SVG units; the page stretches it


@dataclass(frozen=True)
class BarSegment:
    """A segment of a bar, in SVG units. state: ``faster``, ``slower``, ``unclear`` or ``unmeasured``."""

    left: float
    width: float
    state: str


@dataclass(frozen=True)
class CrossoverBar:
    """A mechanism's bar. faster_from: its crossover length; alt_text: description for screen readers."""

    label: str
    variant: str
    error_text: str
    segments: tuple[BarSegment, ...]
    faster_from: str
    alt_text: str


@dataclass(frozen=True)
class CrossoverBarChart:
    """The bars of one configuration on one scale. ticks: evenly spaced lengths."""

    title: str
    config_text: str
    baseline: str
    ticks: tuple[str, ...]
    bars: tuple[CrossoverBar, ...]


def list_bar_charts(tables: Iterable[DecisionTable], cpus: Mapping[str, str]) -> list[CrossoverBarChart]:
    """For each use, chart the configuration with most speedups over exact attention."""
    chosen: dict[str, DecisionTable] = {}
    for table in tables:
        use = USE_BY_MODE.get(str(table.config["mode"]), "")
        if use and table.baseline == "full":
            chosen[use] = max(chosen.get(use, table), table, key=_compute_priority)
    return [_make_chart(use, chosen[use], cpus) for use in USE_WORDS if use in chosen]


def _compute_priority(table: DecisionTable) -> tuple[int, str]:
    return sum(len(d.speedups) - 1 for d in table.decisions), str(sorted(map(str, table.config.items())))


def _make_chart(use: str, table: DecisionTable, cpus: Mapping[str, str]) -> CrossoverBarChart:
    lengths = {n for decision in table.decisions for n in decision.speedups}
    low, high = math.floor(math.log2(min(lengths))), math.ceil(math.log2(max(lengths)))
    low, high = (low - 1, high + 1) if low == high else (low, high)
    step = math.ceil((high - low) / (MAX_TICKS - 1))
    high = low + step * math.ceil((high - low) / step)
    config = dict(table.config)
    causal = None if use == "decode" else config["causal"]
    ticks = (units.short_length(2**exponent) if exponent >= 0 else "" for exponent in range(low, high + 1, step))
    return CrossoverBarChart(
        title=f"{USE_WORDS[use]}: {formatting.format_slice(config['mode'], causal)}",
        config_text=formatting.format_config(config, dict(cpus)),
        baseline=table.baseline,
        ticks=tuple(ticks),
        bars=tuple(_make_bar(decision, low, high) for decision in table.decisions),
    )


def _make_bar(decision: Decision, low: float, high: float) -> CrossoverBar:
    speedups = sorted(decision.speedups.items())
    segments = tuple(_split_bar(speedups, low, high))
    alt_text = formatting.join_words(f"{_classify(speedup)} at {units.short_length(n)}" for n, speedup in speedups)
    faster_from = format_crossover(decision.crossover) if decision.crossover else "no interval"
    error_text = f"{decision.error_text} ({decision.error_on})" if decision.error_on else decision.error_text
    return CrossoverBar(decision.label, decision.variant, error_text, segments, faster_from, alt_text)


def _classify(speedup: Estimate) -> str:
    return formatting.classify_speedup(speedup.low, speedup.high) or "unclear"


def _split_bar(speedups: Sequence[tuple[int, Estimate]], low: float, high: float) -> Iterable[BarSegment]:
    """Each measured length covers the range halfway to its neighbors; the rest is unmeasured."""
    log_lengths = [math.log2(length) for length, _ in speedups]
    half = 0.25 if len(log_lengths) < 2 else min(b - a for a, b in itertools.pairwise(log_lengths)) / 2
    middles = ((a + b) / 2 for a, b in itertools.pairwise(log_lengths))
    cuts = [low, max(low, log_lengths[0] - half), *middles, min(high, log_lengths[-1] + half), high]
    scale = WIDTH / (high - low)
    states = ["unmeasured", *(_classify(speedup) for _, speedup in speedups), "unmeasured"]
    for (left, right), state in zip(itertools.pairwise(cuts), states, strict=True):
        if right > left:
            yield BarSegment(round((left - low) * scale, 1), round((right - left) * scale, 1), state)
