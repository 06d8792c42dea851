"""Building blocks of sections: one block per setting, with sentences, tables and plots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ... import units
from .. import approximation_errors, formatting, select, tables
from ..drawing.figures import Plot, PlotContext, render_plot
from ..drawing.panel_data import Picture
from ..drawing.style import LineStyles
from ..gather import Frame, join_notes

# a plot takes a tenth of a second, half of it for its PNG; these limits keep reports of many runs below a minute
MOST_PLOTS, MOST_LINES = 240, 2400
MOST_NAMED = 2  # mechanisms in a highlight
MOST_OMITTED = 4  # titles of pictures that are not drawn


@dataclass(frozen=True)
class SectionData:
    """Input of all sections: labeled rows, processor names by machine, and line_styles of variants.

    run_notes: notes on sessions that overrode their suite or have an earlier protocol, by ``run_id``.
    """

    rows: Frame
    cpus: dict[str, str]
    line_styles: LineStyles
    run_notes: Mapping[str, str] = field(default_factory=dict)

    def describe_config(self, config: Mapping[str, Any], run_ids: Iterable[str]) -> str:
        """Configuration of a setting, with notes on these runs."""
        note = join_notes(self.run_notes, run_ids)
        return ", ".join(filter(None, (note, formatting.format_config(dict(config), self.cpus))))


@dataclass
class SectionBlock:
    """Sentences, tables and plots of a setting. distinction: what distinguishes it from others of its section.
    config_text: its configuration. pictures: that can be drawn as plots. device: of all its rows."""

    title: str
    distinction: str = ""
    config_text: str = ""
    sentences: list[str] = field(default_factory=list)
    tables: list[tables.ReportTable] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    note: str = ""
    highlights: list[str] = field(default_factory=list)
    device: str | None = None

    @property
    def aligned(self) -> bool:
        """Whether each kind of plot starts a new line: if several of a kind follow each other."""
        kinds = [plot.panel.kind for plot in self.plots]
        return any(kind == following for kind, following in itertools.pairwise(kinds))

    def add_speedup_sentences(self, setting: select.SettingRows, piece: select.Slice, top: Frame) -> None:
        """Add sentences about a slice's speedups at its headline length, and a short version as highlight."""
        row_values = [row for row in tables.list_row_values(top) if not row["is_baseline"] and row["speedup"] > 0]
        if not row_values:
            return
        decode = piece.mode == "decode"
        conditions = [f"{'context ' if decode else ''}{int(top['seq_len'].iloc[0])}", self.distinction]
        conditions.append(formatting.format_slice(piece.mode, None if decode else piece.causal))
        start = f"At {', '.join(filter(None, conditions))}: "
        errors = approximation_errors.describe_error_inputs(row_values)
        end = "; ".join(filter(None, (self.config_text, f"relative errors: {errors}" if errors else "")))
        compared = [row | {"error_text": approximation_errors.describe_error(row)} for row in row_values]
        for texts, most in ((self.sentences, None), (self.highlights, MOST_NAMED)):
            claim = formatting.describe_speedups(compared, setting.baseline, most=most)
            texts.append(f"{start}{claim} ({end})." if end else f"{start}{claim}.")


@dataclass
class Chapter:
    """A rendered section; without blocks it is not shown. task: of its rows, if there are any."""

    title: str
    intro: str
    blocks: list[SectionBlock]
    anchor: str = ""
    task: str | None = None


FillBlock: TypeAlias = Callable[[SectionBlock, select.SettingRows, PlotContext], object]


def make_blocks(
    rows: Frame, section_data: SectionData, fill: FillBlock, *, most: int | None = None
) -> list[SectionBlock]:
    """Make a block per setting with ``fill``, for the first ``most`` settings. File names are numbered if there are
    several."""
    blocks = []
    settings = list(itertools.islice(select.split_settings(rows), most))
    titles = [formatting.format_setting(setting.key, section_data.cpus) for setting in settings]
    varying_columns = list_varying_columns([setting.key for setting in settings])
    for number, (setting, title) in enumerate(zip(settings, titles, strict=True), 1):
        block = SectionBlock(title if titles.count(title) == 1 else f"{title} \u00b7 against {setting.baseline}")
        varying = {name: setting.key[name] for name in varying_columns}
        block.distinction = formatting.format_setting(varying, section_data.cpus)
        block.config_text = section_data.describe_config(setting.key, setting.rows["run_id"])
        block.device = get_device(setting.key)
        suffix = formatting.make_slug(number, block.device) if len(settings) > 1 else ""
        fill(block, setting, PlotContext(section_data.line_styles, suffix, block.config_text))
        blocks += [block] if block.tables or block.pictures else []
    return blocks


def list_varying_columns(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns of a setting in which these configurations differ."""
    return [name for name in select.SETTING_COLUMNS if len({str(config[name]) for config in configs}) > 1]


def get_device(config: Mapping[str, Any]) -> str | None:
    """The device of a configuration; None if unknown."""
    return str(config["device"]) if units.is_present(config["device"]) else None


def explain_columns(blocks: Iterable[SectionBlock], explanations: Sequence[tuple[Sequence[str], str]]) -> str:
    """The explanations of columns that occur in these blocks, each after a space."""
    heads = {name for block in blocks for table in block.tables for name in table.head}
    return "".join(f" {text}" for names, text in explanations if heads.intersection(names))


def find_headline_slices(setting: select.SettingRows) -> Iterator[tuple[select.Slice, Frame]]:
    """Each slice with its rows at the length of its table."""
    for piece in setting.slices:
        for column in ("latency_ms", "peak_memory_bytes", "state_bytes"):
            top = select.find_headline_rows(piece.rows, column)
            if len(top):
                yield piece, top
                break


def draw_pictures(blocks: Sequence[SectionBlock]) -> None:
    """Draw the pictures; above the limits, those of low rank first."""
    ranked = sorted((picture for block in blocks for picture in block.pictures), key=lambda picture: picture.rank)
    line_counts = itertools.accumulate(len(picture.labels) for picture in ranked)
    drawable = [picture for picture, lines in zip(ranked, line_counts, strict=True) if lines <= MOST_LINES]
    limit = f"{MOST_PLOTS} plots" if len(drawable) >= MOST_PLOTS else f"{MOST_LINES} lines"
    chosen = {picture.name for picture in drawable[:MOST_PLOTS]}
    for block in blocks:
        block.plots = [render_plot(picture) for picture in block.pictures if picture.name in chosen]
        omitted = [picture.title for picture in block.pictures if picture.name not in chosen]
        if omitted:
            listed = formatting.join_words(formatting.shorten_list(omitted, MOST_OMITTED))
            block.note = f"Not drawn, because a report has at most {limit}: {listed}. "
            block.note += "To draw them, report fewer runs at once."
