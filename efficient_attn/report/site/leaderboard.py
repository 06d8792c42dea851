"""The leaderboard's lines: the newest timed row of each case, with its quality where it was measured.

The page loads them in blocks, which are scripts, as browsers allow no other requests from local files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from ... import units
from ...spec import format_label, list_names
from .. import formatting
from ..answers.quality import Quality
from ..comparable_quality import MeasuredQuality, QualityFigure, canonicalise_spec
from ..gather import Frame
from .compact import TextTable, format_call
from .picker import DEFAULT_LENGTH, EXACT, USE_TITLES
from .site_names import split_label

MAX_BLOCK_BYTES = 290_000
CASE_COLUMNS = ["variant", "backend", "kv_heads", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim"]
CASE_COLUMNS += ["fill", "mode", "causal", "seq_len", "kv_len", "cache", "compiled", "cuda_graph", "inputs", "budget"]
SHAPE_COLUMNS = ["device", "threads", "batch", "heads", "head_dim", "fill"]
TIMED_COLUMNS = [*CASE_COLUMNS, "run_id", "baseline", "family", "peak_memory_bytes", "state_bytes"]
TIMED_COLUMNS += [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
FILTERS = ("task", "machine", "length", "dtype", "direction", "family")


class Number(NamedTuple):
    """A value to sort by, None if unknown; its text, and a note in small letters."""

    value: float | None = None
    text: str = units.EMPTY
    note: str = ""


class LeaderboardLine(NamedTuple):
    """A line of the leaderboard, in the order of the arrays that the page reads."""

    name: str
    options: str
    link: str
    task: str
    machine: str
    length: int
    dtype: str
    direction: str
    family: str
    shape: str
    time: Number
    speedup: Number
    perplexity: Number
    error: Number
    memory: Number
    run: str
    run_link: str


@dataclass(frozen=True)
class Leaderboard:
    """All lines."""

    lines: tuple[LeaderboardLine, ...]

    @cached_property
    def blocks(self) -> dict[str, tuple[LeaderboardLine, ...]]:
        """The lines of each script, by address: of one machine and task, split where a script would be too large."""
        key = attrgetter("machine", "task")
        by_key = groupby(sorted(self.lines, key=key), key)
        parts = [part for _, lines in by_key for part in _split_lines(tuple(lines))]
        return {f"leaderboard-{number}.js": part for number, part in enumerate(parts)}

    def format_scripts(self) -> Iterator[tuple[str, str]]:
        """Yield the address and the content of each script."""
        for number, (name, lines) in enumerate(self.blocks.items()):
            yield name, _format_block(number, lines)

    def as_data(self) -> dict[str, Any]:
        """What the page needs before any block: the values of each filter, the machine and task of each block, and the
        filters of the first view: with most lines, at the length nearest to the picker's."""
        counts = Counter((line.machine, line.task, line.direction) for line in self.lines)
        most = max(counts, key=lambda key: (counts[key], key), default=None)
        lines = [line for line in self.lines if (line.machine, line.task, line.direction) == most]
        first = min(lines, key=lambda line: abs(math.log(line.length / DEFAULT_LENGTH)), default=None)
        names = ("machine", "task", "direction", "length") if first else ()
        return {
            "fields": LeaderboardLine._fields,
            "filters": {name: sorted({getattr(line, name) for line in self.lines}) for name in FILTERS},
            "blocks": [[name, part[0].machine, part[0].task, len(part)] for name, part in self.blocks.items()],
            "defaults": {name: getattr(first, name) for name in names},
        }


def _split_lines(lines: tuple[LeaderboardLine, ...]) -> list[tuple[LeaderboardLine, ...]]:
    if len(lines) < 2 or len(_format_block(0, lines)) <= MAX_BLOCK_BYTES:
        return [lines]
    middle = len(lines) // 2
    return _split_lines(lines[:middle]) + _split_lines(lines[middle:])


def _format_block(number: int, lines: Iterable[LeaderboardLine]) -> str:
    """``addBlock(0, texts, lines);``: each text is stored once, as its position in ``texts``."""
    texts = TextTable()
    encoded = texts.encode(list(lines))
    return format_call("addBlock", number, list(texts), encoded)


def filter_newest(rows: Frame) -> Frame:
    """The newest row with a time of each case. rows: oldest first."""
    timed = rows[(rows["status"] == "ok") & (rows["task"] == "speed") & rows["latency_ms"].notna()]
    return timed[timed["seq_len"] > 0].drop_duplicates(CASE_COLUMNS, keep="last")


@dataclass(frozen=True)
class LineMaker:
    """Makes lines. machines: short names; links: pages by mechanism; runs: name and page by session."""

    quality: Quality
    machines: Mapping[str, str]
    links: Mapping[str, str]
    runs: Mapping[str, tuple[str, str]]

    def make(self, rows: Frame) -> Leaderboard:
        """Make the leaderboard of rows from `filter_newest`."""
        calls = rows[TIMED_COLUMNS].groupby(["causal", "dtype", "seq_len"], dropna=False, sort=False)
        return Leaderboard(tuple(line for _, part in calls for line in self._make_lines(part)))

    def _make_lines(self, rows: Frame) -> Iterator[LeaderboardLine]:
        """The lines of rows with one direction, dtype and length. Qualities are those of the same direction."""
        records: list[dict[str, Any]] = [
            {name: value if units.is_present(value) else None for name, value in row.items()}
            for row in rows.to_dict("records")
        ]
        first, specs = records[0], {canonicalise_spec(str(row["variant"])) for row in records}
        causal = None if first["causal"] is None else bool(first["causal"])

        def choose(measured: MeasuredQuality) -> Mapping[str, Number]:
            choice = measured.choose(specs, length=int(first["seq_len"]), causal=causal, dtype=first["dtype"])
            if choice.chosen is None or choice.chosen.conditions.causal not in (None, causal):
                return {}
            figures = {spec: choice.find(spec) for spec in specs}
            return {spec: _format_figure(figure) for spec, figure in figures.items() if figure}

        qualities = choose(self.quality.perplexity_ratios), choose(self.quality.errors)
        return (self._make_line(row, *qualities) for row in records)

    def _make_line(
        self, row: Mapping[str, Any], perplexities: Mapping[str, Number], errors: Mapping[str, Number]
    ) -> LeaderboardLine:
        variant = str(row["variant"])
        label = format_label(variant, row["backend"])
        if row["kv_heads"] not in (None, row["heads"]) and "kv_heads" not in label:
            label += f":kv_heads={int(row['kv_heads'])}"
        (name, options), spec = split_label(label), canonicalise_spec(variant)
        is_exact, is_decode = spec == EXACT, row["mode"] == "decode"
        memory = row["state_bytes" if is_decode else "peak_memory_bytes"]
        run, run_link = self.runs.get(str(row["run_id"]), ("", ""))
        return LeaderboardLine(
            name=name,
            options=options,
            link=self.links.get(next(iter(list_names(variant)), ""), ""),
            task=USE_TITLES.get(row["mode"]) or formatting.format_mode(row["mode"]) or units.EMPTY,
            machine=self.machines.get(str(row["machine"]), units.EMPTY),
            length=int(row["seq_len"]),
            dtype=str(row["dtype"]),
            direction=formatting.format_direction(row["causal"]) or units.EMPTY,
            family=str(row["family"] or units.EMPTY),
            shape=_format_shape(row),
            time=Number(row["latency_ms"], *_split_interval(units.duration(*_read_estimate(row, "latency_ms")))),
            speedup=_format_speedup(row),
            perplexity=perplexities.get(spec, Number(1.0, "exact") if is_exact else Number()),
            error=errors.get(spec, Number(0.0, "exact") if is_exact else Number()),
            memory=Number() if memory is None else Number(memory, units.size(memory), "state" if is_decode else ""),
            run=run,
            run_link=run_link,
        )


def _format_shape(row: Mapping[str, Any]) -> str:
    """The rest of the configuration; ``cpu`` and a warm cache are left out."""
    config = {name: row[name] for name in SHAPE_COLUMNS if row[name] != "cpu"}
    extra = [f"{row['cache']} cache"] if row["cache"] not in (None, "warm") else []
    extra += [name for name in ("compiled", "cuda_graph") if row[name] is True]
    return ", ".join(filter(None, (formatting.format_config(config, {}), *extra)))


def _read_estimate(row: Mapping[str, Any], name: str) -> list[float | None]:
    return [row[f"{name}{end}"] for end in ("", "_low", "_high")]


def _format_speedup(row: Mapping[str, Any]) -> Number:
    value, low, high = _read_estimate(row, "speedup")
    if value is None:
        return Number()
    text, interval = _split_interval(units.ratio(value, low, high) if low != high else units.ratio(value))
    if row["baseline"] in (None, "", EXACT):
        return Number(value, text, interval)
    # speedups over other mechanisms are not comparable with those over exact attention, and come last
    return Number(None, text, ", ".join(filter(None, (interval, f"over {row['baseline']}"))))


def _split_interval(text: str) -> tuple[str, str]:
    """A number and its interval: ``22.5 ms`` and ``21.5-23.8``."""
    number, _, interval = text.partition(" (")
    return number, interval.removesuffix(")")


def _format_figure(figure: QualityFigure) -> Number:
    """The number of a quality with its model, length and direction."""
    conditions = figure.conditions
    text = (units.ratio if figure.metric == "perplexity" else units.number)(figure.value)
    if conditions is None:
        return Number(figure.value, text)
    length = units.short_length(conditions.length) if conditions.length else ""
    notes = (conditions.model, length, formatting.format_direction(conditions.causal))
    return Number(figure.value, text, ", ".join(filter(None, notes)))
