"""The leaderboard's lines: the newest timed row of each case, with its quality where it was measured.

The page loads them in blocks, which are scripts, as browsers allow no other requests from local files.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from ... import units
from ...spec import format_label, list_names
from .. import formatting
from ..answers.quality import Quality
from ..comparable_quality import MeasuredQuality, QualityFigure, canonicalise_spec
from ..gather import Frame
from .picker import DEFAULT_LENGTH, EXACT, USE_TITLES
from .short_names import TextTable, split_label

MAX_BLOCK_BYTES = 290_000
CASE_COLUMNS = ["variant", "backend", "kv_heads", "machine", "device", "dtype", "threads", "batch", "heads", "head_dim"]
CASE_COLUMNS += ["fill", "mode", "causal", "seq_len", "kv_len", "cache", "compiled", "cuda_graph", "inputs", "budget"]
SHAPE_COLUMNS = ["device", "threads", "batch", "heads", "head_dim", "fill"]
TIMED_COLUMNS = [*CASE_COLUMNS, "run_id", "baseline", "family", "peak_memory_bytes", "state_bytes"]
TIMED_COLUMNS += [f"{name}{end}" for name in ("latency_ms", "speedup") for end in ("", "_low", "_high")]
FILTERS = ("task", "machine", "length", "dtype", "direction", "family")


class Number(NamedTuple):
    """A value to sort by, None if unknown; its text, and a note in small letters."""

    value: float | None
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
    """All lines. blocks: their scripts by address; parts: the lines of each."""

    lines: tuple[LeaderboardLine, ...]

    @cached_property
    def parts(self) -> tuple[tuple[LeaderboardLine, ...], ...]:
        """The lines of each block: of one machine and task, split where a block would be too large."""
        by_key = groupby(sorted(self.lines, key=_get_block_key), key=_get_block_key)
        return tuple(part for _, lines in by_key for part in _split_lines(tuple(lines)))

    @property
    def blocks(self) -> dict[str, bytes]:
        """The scripts, by address."""
        return {_name_block(i): _format_block(i, lines).encode() for i, lines in enumerate(self.parts)}

    def as_data(self) -> dict[str, Any]:
        """What the page needs before any block: the values of each filter, and the machine and task of each block."""
        values = {name: sorted({getattr(line, name) for line in self.lines}) for name in FILTERS}
        blocks = [[_name_block(i), lines[0].machine, lines[0].task, len(lines)] for i, lines in enumerate(self.parts)]
        return {
            "fields": LeaderboardLine._fields,
            "filters": values,
            "blocks": blocks,
            "defaults": self._choose_defaults(),
        }

    def _choose_defaults(self) -> dict[str, Any]:
        """The filters of the first view: most lines, at the length nearest to the picker's."""
        counts = Counter((line.machine, line.task, line.direction) for line in self.lines)
        if not counts:
            return {}
        key = max(counts, key=lambda key: (counts[key], key))
        lengths = {line.length for line in self.lines if (line.machine, line.task, line.direction) == key}
        length = min(lengths, key=lambda length: abs(math.log(length / DEFAULT_LENGTH)))
        return dict(zip(("machine", "task", "direction", "length"), (*key, length), strict=True))


def _get_block_key(line: LeaderboardLine) -> tuple[str, str]:
    return line.machine, line.task


def _name_block(number: int) -> str:
    return f"leaderboard-{number}.js"


def _split_lines(lines: Sequence[LeaderboardLine]) -> Iterator[tuple[LeaderboardLine, ...]]:
    if len(lines) < 2 or len(_format_block(0, lines)) <= MAX_BLOCK_BYTES:
        yield tuple(lines)
    else:
        middle = len(lines) // 2
        yield from _split_lines(lines[:middle])
        yield from _split_lines(lines[middle:])


def _format_block(number: int, lines: Iterable[LeaderboardLine]) -> str:
    """``addBlock(0, texts, lines);``: each text is stored once, as its position in ``texts``."""
    texts = TextTable()

    def encode(value: Any) -> Any:
        if isinstance(value, Number):
            rounded = None if value.value is None else float(f"{value.value:.5g}")
            return [rounded, encode(value.text), encode(value.note)]
        return texts.intern(value) if isinstance(value, str) else value

    encoded = [[encode(value) for value in line] for line in lines]
    arrays = (json.dumps(values, separators=(",", ":")) for values in (list(texts), encoded))
    return f"addBlock({number},{','.join(arrays)});\n"


# -- from rows -----------------------------------------------------------------------------------------------------


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
        records = rows[TIMED_COLUMNS].to_dict("records")
        return Leaderboard(tuple(line for part in _split_by_calls(records) for line in self._make_lines(part)))

    def _make_lines(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[LeaderboardLine]:
        """The lines of rows with one direction, dtype and length. Qualities are those of the same direction."""
        first, specs = rows[0], {canonicalise_spec(str(row["variant"])) for row in rows}
        causal = bool(first["causal"]) if units.is_present(first["causal"]) else None

        def choose(measured: MeasuredQuality) -> Mapping[str, Number]:
            choice = measured.choose(specs, length=int(first["seq_len"]), causal=causal, dtype=first["dtype"])
            if choice.chosen is None or choice.chosen.conditions.causal not in (None, causal):
                return {}
            figures = {spec: choice.find(spec) for spec in specs}
            return {spec: _format_figure(figure) for spec, figure in figures.items() if figure}

        qualities = choose(self.quality.perplexity_ratios), choose(self.quality.errors)
        return (self._make_line(row, *qualities) for row in rows)

    def _make_line(
        self, row: Mapping[str, Any], perplexities: Mapping[str, Number], errors: Mapping[str, Number]
    ) -> LeaderboardLine:
        variant, unknown = str(row["variant"]), Number(None)
        label = format_label(variant, row["backend"])
        if units.is_present(row["kv_heads"]) and row["kv_heads"] != row["heads"] and "kv_heads" not in label:
            label += f":kv_heads={int(row['kv_heads'])}"
        (name, options), spec = split_label(label), canonicalise_spec(variant)
        exact = Number(0.0, "exact") if spec == EXACT else unknown
        is_decode = row["mode"] == "decode"
        memory = row["state_bytes" if is_decode else "peak_memory_bytes"]
        run, run_link = self.runs.get(str(row["run_id"]), ("", ""))
        return LeaderboardLine(
            name=name,
            options=options,
            link=self.links.get(next(iter(list_names(variant)), ""), ""),
            task=_name_task(row),
            machine=self.machines.get(str(row["machine"]), units.EMPTY),
            length=int(row["seq_len"]),
            dtype=str(row["dtype"]),
            direction=formatting.format_direction(row["causal"]) or units.EMPTY,
            family=str(row["family"]) if units.is_present(row["family"]) else units.EMPTY,
            shape=_format_shape(row),
            time=Number(row["latency_ms"], *_split_interval(units.duration(*_read_estimate(row, "latency_ms")))),
            speedup=_format_speedup(row),
            perplexity=perplexities.get(spec, exact._replace(value=1.0) if spec == EXACT else unknown),
            error=errors.get(spec, exact),
            memory=Number(memory, units.size(memory), "state" if is_decode else "")
            if units.is_present(memory)
            else unknown,
            run=run,
            run_link=run_link,
        )


def _split_by_calls(records: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Split rows by what qualities depend on: direction, dtype and length."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in records:
        groups.setdefault(tuple(str(row[name]) for name in ("causal", "dtype", "seq_len")), []).append(row)
    yield from groups.values()


def _name_task(row: Mapping[str, Any]) -> str:
    """``training step`` for a mode that the picker knows, else the mode."""
    return USE_TITLES.get(row["mode"]) or formatting.format_mode(row["mode"]) or units.EMPTY


def _format_shape(row: Mapping[str, Any]) -> str:
    """The rest of the configuration; ``cpu`` is left out."""
    values = {name: value if units.is_present(value) else None for name in SHAPE_COLUMNS for value in [row[name]]}
    extra = [f"{row['cache']} cache"] if units.is_present(row["cache"]) and row["cache"] != "warm" else []
    extra += [name for name in ("compiled", "cuda_graph") if row[name] is True]
    text = formatting.format_config({**values, "device": None if values["device"] == "cpu" else values["device"]}, {})
    return ", ".join(filter(None, (text, *extra)))


def _read_estimate(row: Mapping[str, Any], name: str) -> tuple[float | None, ...]:
    values = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return tuple(value if units.is_present(value) else None for value in values)


def _format_speedup(row: Mapping[str, Any]) -> Number:
    value, low, high = _read_estimate(row, "speedup")
    if value is None:
        return Number(None)
    baseline = str(row["baseline"]) if units.is_present(row["baseline"]) else ""
    text, interval = _split_interval(units.ratio(value, low, high) if low != high else units.ratio(value))
    if baseline in ("", EXACT):
        return Number(value, text, interval)
    # speedups over other mechanisms are not comparable with those over exact attention, and come last
    return Number(None, text, ", ".join(filter(None, (interval, f"over {baseline}"))))


def _split_interval(text: str) -> tuple[str, str]:
    """A number and its interval: ``22.5 ms`` and ``21.5-23.8``."""
    number, _, interval = text.partition(" (")
    return number, interval.removesuffix(")")


def _format_figure(figure: QualityFigure) -> Number:
    """The number of a quality with its model and length."""
    conditions = figure.conditions
    format_value = units.ratio if figure.metric == "perplexity" else units.number
    parts = (conditions.model, units.short_length(conditions.length) if conditions.length else "") if conditions else ()
    direction = formatting.format_direction(conditions.causal) if conditions else ""
    return Number(figure.value, format_value(figure.value), ", ".join(filter(None, (*parts, direction))))
