"""What a trained model finds in haystacks with each mechanism: shares of right answers, and where needles lay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ... import units
from ...results.section import Section
from .. import select, words
from ..drawing import plots
from ..drawing.maps import Grid, Map
from ..gather import Frame
from ..tables import Shown, Table, show_size
from .blocks import Block, Chapter, Material, make_blocks

INTRO = (
    "Sentences are hidden at even depths in real text, which a trained model reads with each mechanism in place of its "
    "attention. For each it is asked which of ten answers is the most likely, so chance is 10%. 'single': each about "
    "another thing, wrong answers stand nowhere; 'multi_key': all of one form, wrong answers belong to other keys; "
    "'variables': one sentence leads to another; 'words': the most frequent word of a list. Brackets: Wilson's 95% "
    "intervals over questions. Where the model as it is hardly answers better than chance, nothing is said of others."
)
DEPTH = "retrieval.depth_"
SILENT = "says nothing here"


def make_chapter(section: Section, material: Material) -> Chapter:
    rows = material.rows
    rows = rows[(rows["task"] == section.task) & rows["status"].isin(("ok", "skipped"))]
    rows = rows[rows["retrieval.needles"].notna()] if "retrieval.needles" in rows else rows[:0]
    return Chapter(section.title, INTRO, make_blocks(rows, material, _fill))


def _fill(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    model = setting.rows["inputs"].str.rpartition(":")[0]
    for inputs, piece in setting.rows.groupby(model, sort=True):
        found = piece[piece["status"] == "ok"]
        if found.empty:
            continue
        block.tables.append(_make_table(piece, str(inputs)))
        for needles, part in found.groupby("retrieval.needles", sort=False):
            name = words.slug("found", inputs, needles, scene.suffix)
            block.panels.append(_plan(part, name, f"{needles} needles, {inputs}", scene))


# -- the table -------------------------------------------------------------------------------------------------------


def _make_table(rows: Frame, inputs: str) -> Table:
    """A row a variant, the one that finds most first; a column for each kind of needles and length."""
    places = list(dict.fromkeys(zip(rows["retrieval.needles"], rows["seq_len"].astype(int), strict=True)))
    means = rows.groupby("label", sort=False)["accuracy"].mean().sort_values(ascending=False, kind="stable")
    body = []
    for label in means.index:
        own = rows[rows["label"] == label]
        base = bool(own["is_baseline"].any())
        cells = [_show(own[(own["retrieval.needles"] == kind) & (own["seq_len"] == n)]) for kind, n in places]
        longest = own[own["seq_len"] == rows["seq_len"].max()]["state_bytes"].dropna()
        state = show_size(longest.iloc[0] if len(longest) else None)
        body.append([Shown(str(label), str(label), "base" if base else ""), *cells, state])
    head = ("Variant", *(f"{kind}, {n:,} tokens" for kind, n in places), "States, longest")
    return Table(f"Right answers, {inputs}", head, body, note=" ".join(_tell_silent(rows)))


def _show(rows: Frame) -> Shown:
    """The latest answer at one place."""
    if rows.empty:
        return Shown(units.NONE)
    last: Any = rows.iloc[-1]
    if last["status"] != "ok":
        return Shown(SILENT if SILENT in str(last["reason"]) else "skipped")
    low, high = (units.number(100 * last[f"retrieval.accuracy_{end}"]) for end in ("low", "high"))
    return Shown(f"{units.percent(last['accuracy'])} ({low}{units.TO}{high})", float(last["accuracy"]))


def _tell_silent(rows: Frame) -> Iterator[str]:
    """Where the model as it is finds too little, each place once."""
    silent = rows[(rows["status"] == "skipped") & rows["reason"].str.contains(SILENT, na=False)]
    for (kind, n, reason), _ in silent.groupby(["retrieval.needles", "seq_len", "reason"], sort=False):
        yield f"{kind}, {int(n):,} tokens: {reason}."


# -- the maps --------------------------------------------------------------------------------------------------------


def _plan(rows: Frame, name: str, where: str, scene: plots.Scene) -> plots.Planned:
    labels = list(dict.fromkeys(rows["label"]))
    return plots.Planned(name, "found", where, len(labels), lambda: _make_map(rows, labels, name, where, scene))


def _make_map(rows: Frame, labels: Sequence[str], name: str, where: str, scene: plots.Scene) -> Map:
    lengths = sorted(rows["seq_len"].astype(int).unique())
    depths = sorted(int(column.removeprefix(DEPTH)) for column in rows.columns if column.startswith(DEPTH))
    grids = []
    for label in labels:
        own = rows[rows["label"] == label].drop_duplicates("seq_len", keep="last").set_index("seq_len")
        shares = [[_share(own, n, depth) for n in lengths] for depth in depths]
        grids.append(Grid(label, shares))
    return Map(
        name=name,
        kind="found",
        title=f"Found by depth: {where}"[:60],
        caption=f"Right answers in percent by the needle's depth and the text's length: {where}.",
        place=scene.place,
        alt=f"Shares of right answers by depth and length, {where}, for {words.join(labels)}.",
        grids=tuple(grids),
        across=tuple(units.short_length(n) for n in lengths),
        down=tuple(f"{depth}%" for depth in depths),
        xlabel="tokens",
        ylabel="depth",
    )


def _share(rows: Frame, length: int, depth: int) -> float | None:
    value: Any = rows.loc[length, f"{DEPTH}{depth}"] if length in rows.index else None
    return float(value) if units.there(value) else None
