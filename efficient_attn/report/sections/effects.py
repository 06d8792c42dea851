"""What each factor of a design does to the speedups and to the times: main effects with intervals, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ... import units
from ...results.effects import Step, fit_effects, is_number, list_steps
from ...results.section import Section
from ...results.stats import Estimate
from ...spec import label_of
from .. import select, tables, words
from ..drawing import plots
from ..drawing.figures import Line, Panel
from ..drawing.style import choose_looks, natural
from ..gather import Frame
from ..tables import Shown, Table
from .blocks import Block, Chapter, Material

INTRO = (
    "Few of all combinations were measured, balanced, so that the effect of each factor can be told from those of the "
    "others: by what a value is multiplied from the factor's one end to its other, averaged over all else, by least "
    "squares on logarithms with 95% intervals. Interactions were not looked at: where two factors together do more or "
    "less than each alone, that makes the intervals wider and is not told. "
    "Of twenty intervals one leaves out 1 by chance."
)
HIGHLIGHTS = 4  # effects among the sentences at the page's start
BREADTH = 0.66  # of the room between two marks of the plot, what the points of one mark take

# a factor's mark in the plot, and what its ends are called
NAMES: Mapping[str, tuple[str, str]] = {
    "heads": ("H", "{} heads"),
    "kv_heads": ("K", "{} key-value heads"),
    "batch": ("B", "batch {}"),
    "head_dim": ("D", "head size {}"),
    "seq_len": ("N", "length {}"),
    "threads": ("T", "{} threads"),
    "dtype": ("", "{}"),
    "causal": ("C", "{}"),
    "fill": ("", "{}"),
}
LEVELS = {
    "full": ("", "full rows"),
    "half": ("F\u00bd", "rows half full"),
    "drawn": ("Fd", "padded rows of drawn lengths"),
    "packed": ("Fp", "packed rows of drawn lengths"),
    "float32": ("f32", "float32"),
    "float64": ("64", "float64"),
    "float16": ("16", "float16"),
    "bfloat16": ("bf", "bfloat16"),
    False: ("", "bidirectional"),
    True: ("", "causal"),
}
ORDER = list(LEVELS)  # of levels that are words, the first is what the others are compared with
FIXED = ("device", "dtype", "threads", "batch", "heads", "head_dim")  # what is told besides, where it is no factor
PADDED, PACKED = "drawn", "packed"  # the same rows twice

Fitted: TypeAlias = dict[str, dict[Step, Estimate]]  # by variant


@dataclass(frozen=True)
class _Design:
    """The rows of one design on one machine, in one mode."""

    key: dict[str, Any]
    rows: Frame
    levels: Mapping[str, Sequence[Any]]

    @property
    def baseline(self) -> str:
        return str(self.key["baseline"])

    @property
    def points(self) -> list[dict[str, Any]]:
        """The places, as they were measured."""
        found = dict.fromkeys(tuple(_plain(row[f]) for f in self.levels) for row in self.rows.to_dict("records"))
        return [dict(zip(self.levels, values, strict=True)) for values in found]

    def fit(self, column: str) -> Fitted:
        """The effects of every step on each variant's values; without those that its points do not tell apart."""
        own = {name: rows[rows[column] > 0] for name, rows in self.rows.groupby("label", sort=False)}
        if column == "speedup":
            own = {name: rows[~rows["is_baseline"].astype(bool)] for name, rows in own.items()}
        found = {str(name): _fit(rows, self.levels, column) for name, rows in own.items()}
        return {name: effects for name, effects in found.items() if effects}


def select_rows(section: Section, rows: Frame) -> Any:
    """Which rows are the design's."""
    mine = (rows["task"] == section.task) & (rows["suite"] == section.suite) & (rows["part"] == section.part)
    return mine.astype(bool)


def make_chapter(section: Section, material: Material) -> Chapter:
    designs = list(_split(section, select.keep_timed(material.rows[select_rows(section, material.rows)])))
    blocks = [
        _make_block(section, design, material, str(number) if len(designs) > 1 else "")
        for number, design in enumerate(designs, 1)
    ]
    return Chapter(section.title, INTRO, [block for block in blocks if block])


def _split(section: Section, rows: Frame) -> Iterator[_Design]:
    """The rows apart by everything that is no factor and forbids a comparison."""
    names = [label_of(*pair) for pair in zip(rows["variant"], rows["backend"], strict=True)]
    rows = rows.assign(label=names)  # without what tells rows apart that a factor tells apart
    factors = [column.name for column in section.columns if column.name in rows]
    apart = [name for name in (*select.SETTING, "causal", "mode") if name not in factors]
    for values, part in rows.groupby(apart, dropna=False, sort=False):
        found = {factor: sorted(map(_plain, part[factor].dropna().unique()), key=_place) for factor in factors}
        levels = {factor: values for factor, values in found.items() if len(values) > 1}
        if levels and part["speedup"].notna().any():
            yield _Design(dict(zip(apart, values, strict=True)), part, levels)


def _fit(rows: Frame, levels: Mapping[str, Sequence[Any]], column: str) -> dict[Step, Estimate] | None:
    """All steps; besides that from padded to packed rows, for which the padded ones have to be the first level."""
    points = [{factor: _plain(row[factor]) for factor in levels} for row in rows.to_dict("records")]
    values = rows[column].tolist()
    found = fit_effects(points, values, list_steps(levels)) if points else None
    fills = levels.get("fill", ())
    if found and {PADDED, PACKED} < set(fills):
        other = {**levels, "fill": [PADDED, *(fill for fill in fills if fill != PADDED)]}
        step, again = Step("fill", PADDED, PACKED), fit_effects(points, values, list_steps(other))
        assert again is not None
        found[step] = again[step]
    return found


# -- a block -------------------------------------------------------------------------------------------------------


def _make_block(section: Section, design: _Design, material: Material, suffix: str) -> Block | None:
    speedups, times = design.fit("speedup"), design.fit("latency_ms")
    if not speedups:
        return None
    block = Block(words.setting_words(design.key, material.cpus))
    where = _tell_where(design, material.cpus)
    told = [_tell(step, speedups, design.baseline) for step in _steps(speedups)]
    told = sorted((text for text in told if text), key=lambda text: -text[0])
    block.sentences = [where, *(text for _, text in told)]
    block.highlights = block.sentences[: 1 + HIGHLIGHTS]
    block.tables = [
        _make_table(f"By what the speedup over {design.baseline} is multiplied", speedups, marked=True),
        _make_table("By what the time of a call is multiplied", times, marked=False),
        _list_points(design),
    ]
    block.panels = [plots.plan_drawn(_make_panel(section, design, speedups, material, suffix))]
    return block


def _tell_where(design: _Design, cpus: Mapping[str, str]) -> str:
    """What was varied, between which ends, and on what."""
    key, machine = design.key, str(design.key["machine"])
    spans = [
        _name(factor, f"{levels[0]} to {levels[-1]}")
        if is_number(levels[0])
        else words.join(_name(factor, level) for level in levels)
        for factor, levels in design.levels.items()
    ]
    fixed = [_name(name, key[name]) for name in FIXED if units.there(key.get(name))]
    fixed += [words.slice_words(key.get("mode"), key.get("causal")), f"on {cpus.get(machine, machine)}"]
    count = len(design.points)
    return f"Effects over {count} points ({', '.join(fixed)}): {'; '.join(spans)}. Interactions were not looked at."


def _tell(step: Step, fitted: Fitted, baseline: str) -> tuple[float, str] | None:
    """Whose speedup the step changes, where the interval leaves out 1, with the size of the largest such change."""
    parts, largest, becomes = [], 1.0, f"its speedup over {baseline} becomes"
    for kind, verb in (("slower", "loses"), ("faster", "gains")):
        for label, effects in fitted.items():
            found = effects[step]
            if words.verdict(found.low, found.high) == kind:
                by = units.ratio(*found)
                parts.append(f"{label} {verb}, {by}" if parts else f"{label} {verb}, {becomes} {by} as large")
                largest = max(largest, found.value, 1 / found.value)
    return (largest, f"{_tell_step(step)}: {'; '.join(parts)}.") if parts else None


def _tell_step(step: Step) -> str:
    low = _said(step.low) if is_number(step.low) or step.factor in NAMES else _name(step.factor, step.low)
    text = f"{_name(step.factor, step.high)} instead of {low}"
    return text[:1].upper() + text[1:] if step.factor != "dtype" else text


def _name(factor: str, level: Any) -> str:
    known = "{}" if factor == "device" else factor.replace("_", " ") + " {}"
    said = NAMES.get(factor, ("", known))[1].format(_said(level))
    return said.removesuffix("s") if level == 1 else said


def _said(level: Any) -> str:
    return str(level) if is_number(level) else LEVELS.get(level, ("", str(level)))[1]


# -- tables and the plot -------------------------------------------------------------------------------------------


def _steps(fitted: Fitted) -> list[Step]:
    return list(next(iter(fitted.values())))


def _make_table(caption: str, fitted: Fitted, *, marked: bool) -> Table:
    """A row a step, a column a variant."""
    body = [
        [Shown(_tell_step(step)), *(_show(effects[step], marked=marked) for effects in fitted.values())]
        for step in _steps(fitted)
    ]
    return Table(caption, ("From one end to the other", *fitted), body)


def _show(found: Estimate, *, marked: bool) -> Shown:
    mark = words.verdict(found.low, found.high) if marked else ""
    return Shown(f"{units.ratio(*found)} {tables.MARKS.get(mark, '')}".rstrip(), found.value, mark)


def _list_points(design: _Design) -> Table:
    """Every point with the speedups that were measured there."""
    labels = list(dict.fromkeys(design.rows["label"]))
    cells: dict[tuple[Any, ...], dict[str, Shown]] = {}
    for shown, row in zip(tables.list_shown(design.rows), design.rows.to_dict("records"), strict=True):
        place = tuple(_plain(row[factor]) for factor in design.levels)
        time = tables.show_time(shown) if row["is_baseline"] else tables.show_speedup(shown)
        cells.setdefault(place, {})[row["label"]] = time
    head = tuple(factor.replace("_", " ") for factor in design.levels)
    body = [
        [_show_level(level) for level in place] + [found.get(label, Shown(units.NONE)) for label in labels]
        for place, found in cells.items()
    ]
    note = f"Of {design.baseline} its time stands here, of all others their speedup over it."
    return Table("The points", (*head, *labels), body, note=note)


def _show_level(level: Any) -> Shown:
    return Shown(str(level), level) if is_number(level) else Shown(said := _said(level), said)


def _make_panel(section: Section, design: _Design, fitted: Fitted, material: Material, suffix: str) -> Panel:
    steps, labels = _steps(fitted), list(fitted)
    looks = {**choose_looks(labels), **material.looks}
    lines = []
    for number, (label, effects) in enumerate(fitted.items()):
        x = [i + BREADTH * ((number + 0.5) / len(labels) - 0.5) for i in range(len(steps))]
        y, low, high = zip(*(effects[step] for step in steps), strict=True)
        ends = (low, high) if None not in (*low, *high) else (None, None)
        lines.append(Line(label, looks[label], x, y, *ends))
    said = "; ".join(f"{_mark(step)}: {_tell_step(step)}" for step in steps)
    title = f"Effects: {words.slice_words(design.key.get('mode'), design.key.get('causal'))}"
    return Panel(
        name=words.slug("section", section.name, design.key.get("mode"), suffix),
        kind=section.name,
        title=title,
        caption=f"{title}. By what each speedup over {design.baseline} is multiplied, with 95% intervals; {said}.",
        xlabel="what changes",
        ylabel="speedup, multiplied by",
        unit="ratio",
        lines=tuple(lines),
        ticks={float(i): _mark(step) for i, step in enumerate(steps)},
        log_x=False,
        margin=0.5,
        drawn="points",
        level=1.0,
        alt=f"{title}: what each factor does to the speedups of {words.join(labels)}.",
    )


def _mark(step: Step) -> str:
    """What stands for a step below the plot."""
    if step == Step("fill", PADDED, PACKED):
        return "p/d"
    return NAMES.get(step.factor, (step.factor[:2], ""))[0] or LEVELS.get(step.high, (str(step.high)[:2], ""))[0]


def _plain(value: Any) -> Any:
    """A level as Python's own value, a whole number as such."""
    value = value.item() if hasattr(value, "item") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _place(level: Any) -> tuple[int, float, Any]:
    """Where a level comes among the others of its factor."""
    if is_number(level):
        return 0, float(level), []
    return (1, ORDER.index(level), []) if level in ORDER else (2, 0.0, natural(str(level)))
