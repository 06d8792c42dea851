"""How layers and mechanisms grow: exponents with intervals, beside what is claimed, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ... import units
from ...results.section import Section
from .. import select, words
from ..drawing import plots
from ..drawing.ladders import Ladder, Rung
from ..gather import Frame
from ..tables import Shown, Table, sort_value
from .blocks import Block, Chapter, Material, make_blocks

INTRO = (
    "How time and memory of a call grow: exponents of a straight line in logarithms, 1 for linear and 2 for quadratic "
    "growth, over the last sizes that were measured. Brackets: 95% intervals, which a bend in the line widens too. "
    "'Claimed' is what the source's formula gives over the same sizes. A mechanism stands alone; a layer has its "
    "projections too. 'Steps': how many must come one after another. 'Weights': parameters at the smallest size, "
    "without biases. Where later keys are hidden, -1 is half the time."
)
SIGNS = {"reproduced": "faster", "contradicted": "slower", "inconclusive": "unclear"}
GROWS = {"length": "N", "width": "D", "heads": "heads", "causal": "mask"}


def make_chapter(section: Section, material: Material) -> Chapter:
    rows = material.rows
    rows = rows[(rows["status"] == "ok") & (rows["task"] == section.task)]
    # lengths and widths are what varies: a setting is the machine, the dtype, the threads
    rows = rows.assign(**dict.fromkeys(("heads", "head_dim"), pd.NA), baseline=None)
    return Chapter(section.title, INTRO, make_blocks(rows, material, _fill))


def _fill(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for (part, of), rows in setting.rows.groupby(["part", "complexity.of"], sort=False):
        block.tables.append(_make_table(rows, f"{part}: {of}s"))
        for along, own in rows.groupby("complexity.along", sort=False):
            if along in ("length", "width") and len(own) > 1:
                name = words.slug("growth", part, of, along, scene.suffix)
                title = f"{part}: {of}s in {GROWS[str(along)]}"
                block.panels.append(_plan(own, name, title, scene))


# -- the table -------------------------------------------------------------------------------------------------------


def _make_table(rows: Frame, caption: str) -> Table:
    """A row a sweep."""
    head = ("Variant", "Grows", "Sizes", "Time", "Claimed", "Verdict", "Memory", "Claimed memory", "Verdict on memory")
    head += ("Steps", "Weights", "Longest call", "Ended by")
    body = [[Shown(str(row["variant"]), str(row["variant"])), *_show(row)] for row in rows.to_dict("records")]
    kept = [i for i in range(len(head)) if i == 0 or any(line[i].text != units.NONE for line in body)]
    return Table(caption, tuple(head[i] for i in kept), [[line[i] for i in kept] for line in body], note=_tell(rows))


def _show(row: Mapping[Any, Any]) -> Iterator[Shown]:
    get = {name.removeprefix("complexity."): value for name, value in row.items()}.get
    yield Shown(GROWS.get(str(get("along")), str(get("along"))))
    causal = get("along") == "causal"
    yield Shown(units.NONE if causal else f"{int(get('smallest') or 0):,} to {int(get('reached') or 0):,}")
    for what in ("time", "memory"):
        value, low, high = (get(f"{what}_{end}") for end in ("exponent", "low", "high"))
        interval = f" ({_write(low)} to {_write(high)})" if units.there(low) and units.there(high) else ""
        yield Shown(f"{_write(value)}{interval}" if units.there(value) else units.NONE, sort_value(value))
        claim, claimed, verdict = (get(f"{what}_{end}") for end in ("claim", "claimed", "verdict"))
        yield Shown(f"{_write(claimed)}: {claim}" if units.there(claimed) else units.NONE, sort_value(claimed))
        said = str(verdict) if units.there(verdict) else units.NONE
        yield Shown(said, said, SIGNS.get(said.partition(":")[0], ""))
    yield _beside(get("sequential"), get("sequential_claimed"))
    yield _beside(get("weights"), get("weights_claimed"))
    yield Shown(units.duration(row["latency_ms"]), sort_value(row["latency_ms"]))
    yield Shown(str(get("stopped")) if units.there(get("stopped")) else units.NONE)


def _write(exponent: Any) -> str:
    """Two decimals; what rounds to nothing has no sign."""
    return f"{round(exponent, 2) + 0:.2f}"


def _beside(counted: Any, claimed: Any) -> Shown:
    """A number, and the published one where it is another."""
    if not units.there(counted):
        return Shown(units.NONE)
    other = f" (claimed {int(claimed):,})" if units.there(claimed) and int(claimed) != int(counted) else ""
    return Shown(f"{int(counted):,}{other}", float(counted))


def _tell(rows: Frame) -> str:
    """Who claims what."""
    said = {row["variant"]: row["complexity.source"] for row in rows.to_dict("records")}
    known = [f"{variant}: {source}" for variant, source in said.items() if units.there(source)]
    return f"Sources: {'; '.join(known)}." if known else ""


# -- the plot --------------------------------------------------------------------------------------------------------


def _plan(rows: Frame, name: str, title: str, scene: plots.Scene) -> plots.Planned:
    return plots.Planned(name, "growth", title, 2, lambda: _make_panel(rows, name, title, scene))


def _make_panel(rows: Frame, name: str, title: str, scene: plots.Scene) -> Ladder:
    """A rung a variant: what was measured with its interval, and what is claimed."""
    parts = [f"complexity.time_{end}" for end in ("exponent", "low", "high", "claimed")]
    columns = [rows[part].astype(float).tolist() if part in rows else [None] * len(rows) for part in parts]
    known = [[value if units.there(value) else None for value in values] for values in columns]
    rungs = tuple(Rung(str(v), *own) for v, *own in zip(rows["variant"], *known, strict=True))
    return Ladder(
        name=name,
        kind="growth",
        title=f"Exponent of time: {title}"[:60],
        place=scene.place,
        caption=f"Exponent of time, measured with its 95% interval, and claimed: {title}.",
        rungs=rungs,
        xlabel="Exponent of time",
        alt=f"Exponents of time, measured and claimed, {title}: {words.join([rung.label for rung in rungs])}.",
    )
