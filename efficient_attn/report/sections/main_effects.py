"""Main effects of a design's factors on speedups and times, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ... import units
from ...results.effects import EffectStep, fit_effects, is_number, list_steps
from ...results.section import Section
from ...results.stats import Estimate
from ...spec import format_label
from .. import select
from ..drawing.figures import PlotContext
from ..drawing.panel_data import Panel, make_line
from ..drawing.style import LineStyles, choose_line_styles, make_natural_sort_key
from ..formatting import classify_speedup, format_setting, format_slice, join_words
from ..gather import Frame
from ..tables import MARKS, ReportCell, ReportTable, list_row_values, show_speedup, show_time
from .section_blocks import Chapter, SectionBlock, SectionData

INTRO = (
    "A balanced subset of all combinations was measured, from which the main effect of each factor is estimated: the "
    "factor by which a value changes from one level to another, averaged over the other factors, by least squares on "
    "logarithms with 95% intervals. Interactions are not estimated; they make the intervals wider. About one interval "
    "in twenty excludes 1 by chance."
)
HIGHLIGHTS = 4  # maximum number of effects among the findings
POINTS_BREADTH = 0.66  # width of a group of points, relative to the distance between ticks

# by factor: its symbol in tick labels, and the format of a level
FACTOR_NAMES: Mapping[str, tuple[str, str]] = {
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
LEVEL_NAMES = {
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
LEVEL_ORDER = list(LEVEL_NAMES)  # of levels that are not numbers; the others are compared with the first
# part of the summary if they do not vary
FIXED_FACTORS = ("device", "dtype", "threads", "batch", "heads", "head_dim")
PADDED, PACKED = "drawn", "packed"  # the same lengths in two layouts
PACKING = EffectStep("fill", PADDED, PACKED)
EffectsByVariant: TypeAlias = dict[str, dict[EffectStep, Estimate]]


@dataclass(frozen=True)
class _Design:
    """The rows of one design on one machine, in one mode."""

    key: dict[str, Any]
    rows: Frame
    levels: Mapping[str, Sequence[Any]]

    @property
    def baseline(self) -> str:
        return str(self.key["baseline"])

    def list_points(self, rows: Frame) -> list[dict[str, Any]]:
        """The level of each factor in each row."""
        return [{factor: _as_python_value(row[factor]) for factor in self.levels} for row in rows.to_dict("records")]

    def fit_column(self, column: str) -> EffectsByVariant:
        """Effects of each step on the values of each variant, without variants to which no effects can be fitted."""
        rows = self.rows[~self.rows["is_baseline"].astype(bool)] if column == "speedup" else self.rows
        parts = rows.groupby("label", sort=False)
        effects_by_label = {str(name): self._fit_rows(part[part[column] > 0], column) for name, part in parts}
        return {name: effects for name, effects in effects_by_label.items() if effects}

    def _fit_rows(self, rows: Frame, column: str) -> dict[EffectStep, Estimate] | None:
        """Effects of all steps, and of the step from padded to packed rows, by a second fit with padded rows first."""
        points, values = self.list_points(rows), rows[column].tolist()
        effects = fit_effects(points, values, list_steps(self.levels))
        fills = self.levels.get("fill", ())
        if effects and {PADDED, PACKED} < set(fills):
            padded_first = {**self.levels, "fill": [PADDED, *(fill for fill in fills if fill != PADDED)]}
            padded_effects = fit_effects(points, values, list_steps(padded_first))
            assert padded_effects is not None
            effects[PACKING] = padded_effects[PACKING]
        return effects


def select_design_rows(section: Section, rows: Frame) -> Any:
    """Mask of the rows that belong to the section's design."""
    is_selected = (rows["task"] == section.task) & (rows["suite"] == section.suite) & (rows["part"] == section.part)
    return is_selected.astype(bool)


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """The chapter on main effects of a screening design."""
    rows = section_data.rows[select_design_rows(section, section_data.rows)]
    designs = list(_split_designs(section, select.filter_timed(rows)))
    several = len(designs) > 1
    blocks = [_make_block(section, d, number if several else None, section_data) for number, d in enumerate(designs, 1)]
    return Chapter(section.title, INTRO, [block for block in blocks if block])


def _split_designs(section: Section, rows: Frame) -> Iterator[_Design]:
    """Split rows by all columns that must agree for a comparison and are not factors."""
    names = [format_label(*pair) for pair in zip(rows["variant"], rows["backend"], strict=True)]
    rows = rows.assign(label=names)  # without the suffixes of `select.add_labels`: factors distinguish these rows
    factors = [column.name for column in section.columns if column.name in rows]
    group_columns = [name for name in (*select.SETTING_COLUMNS, "causal", "mode") if name not in factors]
    for values, part in rows.groupby(group_columns, dropna=False, sort=False):
        values_by_factor = {factor: part[factor].dropna().unique() for factor in factors}
        levels = {
            factor: sorted(map(_as_python_value, distinct), key=_make_level_sort_key)
            for factor, distinct in values_by_factor.items()
            if len(distinct) > 1
        }
        if levels and part["speedup"].notna().any():
            yield _Design(dict(zip(group_columns, map(_as_python_value, values), strict=True)), part, levels)


def _make_block(section: Section, design: _Design, number: int | None, data: SectionData) -> SectionBlock | None:
    speedups, times = design.fit_column("speedup"), design.fit_column("latency_ms")
    if not speedups:
        return None
    block = SectionBlock(format_setting(design.key, data.cpus))
    steps = list(next(iter(speedups.values())))
    effects = filter(None, (_describe_effects(step, speedups, design.baseline) for step in steps))
    largest_first = sorted(effects, key=lambda effect: -effect[0])
    block.sentences = [_describe_design(design, data.cpus), *(text for _, text in largest_first)]
    block.highlights = block.sentences[: 1 + HIGHLIGHTS]
    block.tables = [
        _make_table(f"Factor by which the speedup over {design.baseline} changes", speedups, marked=True),
        _make_table("Factor by which the time of a call changes", times, marked=False),
        _list_points(design),
    ]
    context = PlotContext(data.line_styles, "" if number is None else str(number))
    panel, names = _make_panel(design, speedups, data.line_styles), ("section", section.name, design.key.get("mode"))
    block.pictures = list(context.name_parts(panel, section.name, *names))
    return block


def _describe_design(design: _Design, cpus: Mapping[str, str]) -> str:
    """Varied factors with their ranges, fixed factors, and the machine."""
    key, machine = design.key, str(design.key["machine"])
    spans = []
    for factor, levels in design.levels.items():
        texts = [f"{levels[0]} to {levels[-1]}"] if is_number(levels[0]) else levels
        spans.append(join_words(_format_factor_level(factor, text) for text in texts))
    fixed = [_format_factor_level(name, key[name]) for name in FIXED_FACTORS if units.is_present(key.get(name))]
    fixed += [format_slice(key.get("mode"), key.get("causal")), f"on {cpus.get(machine, machine)}"]
    count = len({tuple(point.values()) for point in design.list_points(design.rows)})
    return f"Effects over {count} points ({', '.join(fixed)}): {'; '.join(spans)}. Interactions are not estimated."


def _describe_effects(step: EffectStep, fitted: EffectsByVariant, baseline: str) -> tuple[float, str] | None:
    """Significant changes of speedups by a step as text, and the largest of them; None if there are none."""
    parts, largest = [], 1.0
    for kind in ("slower", "faster"):
        for label, effects in fitted.items():
            effect = effects[step]
            if classify_speedup(effect.low, effect.high) == kind:
                factor = units.ratio(*effect)
                change = f"the speedup of {label} over {baseline} becomes {factor} as large"
                parts.append(f"that of {label} {factor}" if parts else change)
                largest = max(largest, effect.value, 1 / effect.value)
    return (largest, f"{_describe_step(step)}: {'; '.join(parts)}.") if parts else None


def _describe_step(step: EffectStep) -> str:
    is_plain = is_number(step.low) or step.factor in FACTOR_NAMES
    low = _format_level(step.low) if is_plain else _format_factor_level(step.factor, step.low)
    text = f"{_format_factor_level(step.factor, step.high)} instead of {low}"
    return text[:1].upper() + text[1:] if step.factor != "dtype" else text


def _format_factor_level(factor: str, level: Any) -> str:
    default_format = "{}" if factor == "device" else factor.replace("_", " ") + " {}"
    text = FACTOR_NAMES.get(factor, ("", default_format))[1].format(_format_level(level))
    return text.removesuffix("s") if level == 1 else text


def _format_level(level: Any) -> str:
    return str(level) if is_number(level) else LEVEL_NAMES.get(level, ("", str(level)))[1]


def _make_table(caption: str, fitted: EffectsByVariant, *, marked: bool) -> ReportTable:
    body = [
        [ReportCell(_describe_step(step)), *(_show_effect(effects[step], marked=marked) for effects in fitted.values())]
        for step in next(iter(fitted.values()))
    ]
    return ReportTable(caption, ("Change of level", *fitted), body)


def _show_effect(effect: Estimate, *, marked: bool) -> ReportCell:
    mark = classify_speedup(effect.low, effect.high) if marked else ""
    return ReportCell(f"{units.ratio(*effect)} {MARKS.get(mark, '')}".rstrip(), effect.value, mark)


def _list_points(design: _Design) -> ReportTable:
    """Every point with the speedups that were measured at it."""
    labels = list(dict.fromkeys(design.rows["label"]))
    cells: dict[tuple[Any, ...], dict[str, ReportCell]] = {}
    for row, point in zip(list_row_values(design.rows), design.list_points(design.rows), strict=True):
        cell = show_time(row) if row["is_baseline"] else show_speedup(row)
        cells.setdefault(tuple(point.values()), {})[row["label"]] = cell
    head = tuple(factor.replace("_", " ") for factor in design.levels)
    body = [
        [ReportCell(_format_level(level), level if is_number(level) else None) for level in point]
        + [cells_by_label.get(label, ReportCell(units.EMPTY)) for label in labels]
        for point, cells_by_label in cells.items()
    ]
    note = f"{design.baseline}: time; other variants: speedup over {design.baseline}."
    return ReportTable("Measured points", (*head, *labels), body, note=note)


def _make_panel(design: _Design, fitted: EffectsByVariant, known_styles: LineStyles) -> Panel:
    steps, labels = list(next(iter(fitted.values()))), list(fitted)
    line_styles = {**choose_line_styles(labels), **known_styles}
    lines = []
    for number, (label, effects) in enumerate(fitted.items()):
        x = [i + POINTS_BREADTH * ((number + 0.5) / len(labels) - 0.5) for i in range(len(steps))]
        lines.append(make_line(label, line_styles[label], x, [effects[step] for step in steps]))
    legend = "; ".join(f"{_format_tick(step)}: {_describe_step(step)}" for step in steps)
    title = f"Effects: {format_slice(design.key.get('mode'), design.key.get('causal'))}"
    return Panel(
        title=title,
        caption=f"{title}. Factor by which each speedup over {design.baseline} changes, with 95% intervals; {legend}.",
        xlabel="change of level",
        ylabel="factor on the speedup",
        unit="ratio",
        lines=tuple(lines),
        ticks={float(i): _format_tick(step) for i, step in enumerate(steps)},
        log_x=False,
        margin=0.5,
        mark_type="points",
        level=1.0,
    )


def _format_tick(step: EffectStep) -> str:
    if step == PACKING:
        return "p/d"
    factor_mark = FACTOR_NAMES.get(step.factor, (step.factor[:2], ""))[0]
    return factor_mark or LEVEL_NAMES.get(step.high, (str(step.high)[:2], ""))[0]


def _as_python_value(value: Any) -> Any:
    """A level as a Python scalar, whole numbers as integers."""
    value = value.item() if hasattr(value, "item") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _make_level_sort_key(level: Any) -> tuple[int, float, Any]:
    if is_number(level):
        return 0, float(level), []
    return (1, LEVEL_ORDER.index(level), []) if level in LEVEL_ORDER else (2, 0.0, make_natural_sort_key(str(level)))
