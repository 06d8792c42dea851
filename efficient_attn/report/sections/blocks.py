"""What sections are made of: a block a setting, with its sentences, tables and plots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pandas as pd

from ... import units
from .. import losses, select, tables, words
from ..drawing import figures, plots
from ..drawing.style import Look
from ..gather import Frame

# nobody looks at hundreds of plots, and each costs a tenth of a second: half for its lines and their names
MOST_PLOTS, MOST_LINES = 24, 240
MOST_NAMED = 2  # mechanisms in a highlight


@dataclass(frozen=True)
class Material:
    """What every section is made from: all rows with their labels, what processors are called, how variants look.

    trials: the sessions, by their ``run_id``, that ran something else than their suite says.
    """

    rows: Frame
    cpus: dict[str, str]
    looks: Mapping[str, Look]
    trials: frozenset[str] = frozenset()

    def name_place(self, setting: select.Setting) -> str:
        """What a setting's numbers hold for, and whether they are a trial's."""
        tried = bool(self.trials.intersection(setting.rows["run_id"]))
        return ", ".join(filter(None, ("trial" if tried else "", words.place_words(setting.key, self.cpus))))


@dataclass
class Block:
    """What is said of one setting: sentences, tables, plots.

    apart: what tells it from the others of its section. place: what its numbers hold for. device: where they were all
    measured, as rows name it.
    """

    setting: str
    apart: str = ""
    place: str = ""
    sentences: list[str] = field(default_factory=list)
    tables: list[tables.Table] = field(default_factory=list)
    panels: list[plots.Planned] = field(default_factory=list)
    plots: list[figures.Plot] = field(default_factory=list)
    note: str = ""
    highlights: list[str] = field(default_factory=list)
    device: str | None = None

    @property
    def aligned(self) -> bool:
        """Whether each kind of plot starts a line of its own: not where every kind has but one."""
        return len({plot.panel.kind for plot in self.plots}) < len(self.plots)

    def say(self, setting: select.Setting, piece: select.Slice, top: Frame) -> None:
        """What a slice's speedups show at its headline length, whole and in short; nothing where there are none."""
        found = [row for row in tables.list_shown(top) if not row["is_baseline"] and row["speedup"] > 0]
        if not found:
            return
        decode = piece.mode == "decode"
        place = [f"{'context ' if decode else ''}{int(top['seq_len'].iloc[0])}", self.apart]
        place.append(words.slice_words(piece.mode, None if decode else piece.causal))
        start, errors = f"At {', '.join(filter(None, place))}: ", losses.tell_places(found)
        end = "; ".join(filter(None, (self.place, f"errors on {errors}" if errors else "")))
        compared = [row | {"loss": losses.tell(row)} for row in found]
        for texts, most in ((self.sentences, None), (self.highlights, MOST_NAMED)):
            said = words.claim(compared, setting.baseline, most=most)
            texts.append(f"{start}{said} ({end})." if end else f"{start}{said}.")

    def draw(self, chosen: set[str], limit: str) -> None:
        """Draw the chosen panels and say which were left out, and for which limit."""
        self.plots = [
            replace(figures.draw(panel.make()), mode=panel.mode) for panel in self.panels if panel.name in chosen
        ]
        left = [panel.title for panel in self.panels if panel.name not in chosen]
        if left:
            few = words.join(left[:4] + ([f"{len(left) - 4} more"] if len(left) > 4 else []))
            self.note = f"Not drawn, because a report draws at most {limit}: {few}. Report fewer runs at once."


@dataclass
class Chapter:
    """A section as the page shows it; nothing is shown of one without blocks. task: of all its rows, if it is one."""

    title: str
    intro: str
    blocks: list[Block]
    anchor: str = ""
    task: str | None = None


Fill: TypeAlias = Callable[[Block, select.Setting, plots.Scene], object]


def make_blocks(rows: Frame, material: Material, fill: Fill, *, most: int | None = None) -> list[Block]:
    """A block a setting, as ``fill`` fills it, of the first so many settings; files' names tell settings apart only
    where there are several."""
    blocks = []
    every = list(itertools.islice(select.split_settings(rows), most))
    titles = [words.setting_words(setting.key, material.cpus) for setting in every]
    apart = [name for name in select.SETTING if len({str(setting.key[name]) for setting in every}) > 1]
    for number, (setting, title) in enumerate(zip(every, titles, strict=True), 1):
        device = "" if pd.isna(setting.key["device"]) else f"-{setting.key['device']}"
        title = title if titles.count(title) == 1 else f"{title} \u00b7 against {setting.baseline}"
        place = material.name_place(setting)
        block = Block(title, words.setting_words({name: setting.key[name] for name in apart}, material.cpus), place)
        block.device = str(setting.key["device"]) if units.there(setting.key["device"]) else None
        fill(block, setting, plots.Scene(material.looks, f"{number}{device}" if len(every) > 1 else "", place))
        blocks += [block] if block.tables or block.panels else []
    return blocks


def explain(blocks: Iterable[Block], said: Sequence[tuple[Sequence[str], str]]) -> str:
    """Of texts about columns, those whose columns a table of these blocks has, each after a space."""
    heads = {name for block in blocks for table in block.tables for name in table.head}
    return "".join(f" {text}" for names, text in said if heads.intersection(names))


def find_tops(setting: select.Setting) -> Iterator[tuple[select.Slice, Frame]]:
    """Each slice with its rows at the length that its table is about."""
    for piece in setting.slices:
        for column in ("latency_ms", "peak_memory_bytes", "state_bytes"):
            top = select.find_headline(piece.rows, column)
            if len(top):
                yield piece, top
                break


def draw_plots(blocks: Sequence[Block]) -> None:
    """The plots: all of them where they are few, else what tells most of each setting before the rest of any."""
    chosen: set[str] = set()
    lines, limit = 0, ""
    for panel in sorted((panel for block in blocks for panel in block.panels), key=plots.rank):
        lines += panel.lines
        limit = f"{MOST_PLOTS} plots" if len(chosen) == MOST_PLOTS else f"{MOST_LINES} lines"
        if len(chosen) == MOST_PLOTS or lines > MOST_LINES:
            break
        chosen.add(panel.name)
    for block in blocks:
        block.draw(chosen, limit)
