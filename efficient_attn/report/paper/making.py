"""From runs to the file that a paper includes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ...errors import UsageError
from ...results.marks import MARK
from .. import losses, select
from ..drawing import narrow, style
from ..drawing.figures import Panel
from ..gather import gather
from ..sections.tradeoffs import Cost
from . import choosing, latex
from .choosing import Asked, Place
from .exhibits import Exhibit, choose_figure

Name = Literal["speed", "memory", "front", "crossover", "loss"]
Format = Literal["pdf", "svg", "png", "tex"]
NAMES: tuple[Name, ...] = get_args(Name)
FORMATS: tuple[Format, ...] = get_args(Format)
COLUMN = 3.3  # inches: a column of most papers


@dataclass(frozen=True, kw_only=True)
class Request(Asked):
    """A figure. width: inches, of pictures. against: what a front weighs losses with. told: whether the place stands in
    the picture. Raises `UsageError` for what does not exist, or cannot be."""

    figure: Name
    form: Format = "pdf"
    width: float = COLUMN
    against: Cost = "time"
    told: bool = True

    def __post_init__(self) -> None:
        if not narrow.LEAST <= self.width <= narrow.MOST:
            asked = f"{narrow.LEAST:g} to {narrow.MOST:g} inches"
            raise UsageError(f"plot: --width {self.width:.3g}in: a figure is {asked} wide")
        if self.against != "time" and self.figure != "front":
            raise UsageError(f"plot: --against is of --figure front; --figure {self.figure} has no such choice")


@dataclass(frozen=True)
class Made:
    """A file's content, and what its caption has to say. left_out: mechanisms that were measured there and are not
    shown. others: places that the same figure could show, each with the options that choose it."""

    data: bytes
    caption: str
    place: str
    shown: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    others: tuple[str, ...] = field(default=())


def make(runs: Sequence[Path], request: Request) -> Made:
    """The figure of these runs, as a file of the form asked for.

    Where runs hold several places, that is drawn at which most can be shown; `Made.others` names the rest. Raises
    `UsageError` for runs that hold nothing for it, and for names that nothing there has.
    """
    found = gather(runs)
    rows = losses.add_losses(select.add_labels(found.rows))
    looks = style.choose_looks(rows["label"])
    figure = choose_figure(request.figure, request.against)
    kept = choosing.keep_rows(rows, request.where)
    listed = choosing.list_judged(kept) if figure.judged else choosing.list_timed(kept)
    place, others = choosing.choose_place(listed, figure.count, request.figure)
    labels, left = choosing.choose_labels(figure.rank(place), request, figure.most, place.always)
    exhibit = figure.make(place, labels, looks)
    every = [cells[0].said for cells in exhibit.body] + [line.label for line in exhibit.panel.lines]
    every = list(dict.fromkeys(every))
    marked = (label for text in request.highlight for label in choosing.find(text, [*every, *place.always]))
    bold = frozenset(label for label in marked if label in every)
    if request.highlight and not bold:
        raise UsageError(f"plot: --highlight {request.highlight[0]}: the level of this figure, not a line of it")
    names = choosing.read_labels(request.labels, every)
    tried = any(run in found.trials for run in place.rows["run_id"])
    told = ", ".join(filter(None, ("trial" if tried else "", place.tell())))
    caption = _rename(f"{exhibit.caption} Measured: {told}.", names)
    data = _write(exhibit, request, names, bold, caption, told)
    return Made(
        data,
        caption,
        told,
        tuple(labels),
        tuple(left),
        tuple(dict.fromkeys(_tell_choice(place, each) for each in others)),
    )


def _write(
    exhibit: Exhibit, request: Request, names: Mapping[str, str], bold: frozenset[str], caption: str, place: str
) -> bytes:
    if request.form == "tex":
        label = f"tab:{request.figure}"
        head = (f"{MARK}. Needs \\usepackage{{booktabs}} and \\usepackage{{textcomp}}.", place)
        return latex.write(exhibit, names=names, caption=caption, label=label, bold=bold, head=head).encode()
    panel = _dress(exhibit.panel, names, bold, place)
    return narrow.draw(
        panel, request.form, width=request.width, bold={names[label] for label in bold}, told=request.told
    )


def _dress(panel: Panel, names: Mapping[str, str], bold: frozenset[str], place: str) -> Panel:
    """The panel with the names that were asked for; where some are highlighted, all others are grey."""
    lines = []
    for line in panel.lines:
        grey = bool(bold) and line.label not in bold
        look = line.look._replace(colour=style.FAINT) if grey else line.look
        lines.append(replace(line, label=names[line.label], look=look))
    return replace(panel, lines=tuple(lines), place=place)


def _rename(text: str, names: Mapping[str, str]) -> str:
    """The text with names in place of labels, where these stand alone; of labels that begin alike the longest."""
    changed = sorted((label for label, name in names.items() if label != name), key=len, reverse=True)
    if not changed:
        return text
    alone = rf"(?<![\w:=|])(?:{'|'.join(map(re.escape, changed))})(?![\w:=|])"
    return re.sub(alone, lambda found: names[found[0]], text)


def _tell_choice(chosen: Place, other: Place) -> str:
    """The options that lead to another place: in what it differs from the one that was taken."""
    options = []
    for column in choosing.FILTERS:
        own: Any = other.key.get(column)
        if column in other.key and str(own) != str(chosen.key.get(column)):
            said = (
                ("--causal" if own else "--no-causal") if column == "causal" else f"--{column.replace('_', '-')} {own}"
            )
            options.append(said)
    return " ".join(options) if options else other.tell()
