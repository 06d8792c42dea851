"""Retrieval by trained models with each mechanism: accuracy, also by depth of the needle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ... import units
from ...results.section import Section
from .. import select
from ..drawing.figures import PlotContext
from ..drawing.heatmap import Heatmap, HeatmapGrid
from ..gather import Frame
from ..tables import ReportCell, ReportTable, show_label, show_value
from .section_blocks import Chapter, SectionBlock, SectionData, make_blocks

INTRO = (
    "Sentences (needles) are hidden at even depths in real text, which a trained model reads with each mechanism in "
    "place of its attention. A right answer is found if it is more likely than nine wrong ones, so chance is 10%. "
    "'single': needles about different things; 'multi_key': needles of one form, wrong answers belong to other keys; "
    "'multi_value': several values for each key; 'variables': one sentence refers to another; 'words': the most "
    "frequent word of a list; 'passages', of encoders: the second half of a passage has the largest cosine with the "
    "first, of 32. Brackets: 95% intervals. Where the unmodified model is too weak, no mechanism runs."
)
DEPTH_PREFIX = "retrieval.depth_"
TOO_WEAK_REASON = "is too weak|does not exceed chance|says nothing here"  # a regular expression; the last: of old rows
TOO_WEAK_TEXT = "skipped: model too weak"


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """The chapter on retrieval in long contexts."""
    rows = section_data.rows
    rows = rows[(rows["task"] == section.task) & rows["status"].isin(("ok", "skipped"))]
    rows = rows[rows["retrieval.needles"].notna()] if "retrieval.needles" in rows else rows[:0]
    return Chapter(section.title, INTRO, make_blocks(rows, section_data, _fill_block))


def _fill_block(block: SectionBlock, setting: select.SettingRows, context: PlotContext) -> None:
    model = setting.rows["inputs"].str.rpartition(":")[0]
    for inputs, piece in setting.rows.groupby(model, sort=True):
        ok_rows = piece[piece["status"] == "ok"]
        if ok_rows.empty:
            continue
        block.tables.append(_make_table(piece, str(inputs)))
        depths = ok_rows[[column for column in ok_rows if str(column).startswith(DEPTH_PREFIX)]]
        for needles, part in ok_rows[depths.notna().any(axis=1)].groupby("retrieval.needles", sort=False):
            heatmap = _make_heatmap(part, f"{needles} needles, {inputs}")
            block.pictures += context.name_parts(heatmap, "found", "found", inputs, needles)


def _make_table(rows: Frame, inputs: str) -> ReportTable:
    """A row per variant, most accurate first, and a column per kind of needles and length."""
    columns = list(dict.fromkeys(zip(rows["retrieval.needles"], rows["seq_len"].astype(int), strict=True)))
    means = rows.groupby("label", sort=False)["accuracy"].mean().sort_values(ascending=False, kind="stable")
    latest = {(row["label"], row["retrieval.needles"], row["seq_len"]): row for row in rows.to_dict("records")}
    body = []
    for label in means.index:
        variant_rows = rows[rows["label"] == label]
        is_baseline = bool(variant_rows["is_baseline"].any())
        cells = [_show_accuracy(latest.get((label, kind, n))) for kind, n in columns]
        longest = variant_rows[variant_rows["seq_len"] == rows["seq_len"].max()]["state_bytes"].dropna()
        state = show_value(longest.iloc[0] if len(longest) else None, "bytes")
        body.append([show_label(str(label), is_baseline=is_baseline), *cells, state])
    head = ("Variant", *(f"{kind}, {n:,} tokens" for kind, n in columns), "States, longest")
    return ReportTable(
        f"Accuracy, {inputs}", head, body, note=" ".join((*_describe_priors(rows), *_describe_too_weak(rows)))
    )


def _show_accuracy(row: dict[str, Any] | None) -> ReportCell:
    if row is None:
        return ReportCell(units.EMPTY)
    if row["status"] != "ok":
        return ReportCell(TOO_WEAK_TEXT if re.search(TOO_WEAK_REASON, str(row["reason"])) else "skipped")
    low, high = (units.number(100 * row[f"retrieval.accuracy_{end}"]) for end in ("low", "high"))
    return ReportCell(f"{units.percent(row['accuracy'])} ({low}{units.INTERVAL_DASH}{high})", float(row["accuracy"]))


def _describe_priors(rows: Frame) -> Iterator[str]:
    """The unmodified model's accuracy without the texts, where rows have it."""
    if "retrieval.prior" in rows:
        for (kind, n), prior in (
            rows.groupby(["retrieval.needles", "seq_len"], sort=False)["retrieval.prior"].first().items()
        ):
            source = "by the words alone (tf-idf)" if kind == "passages" else "without the text"
            if units.is_present(prior):
                yield f"{kind}, {int(n):,} tokens: {units.percent(prior)} {source}."


def _describe_too_weak(rows: Frame) -> Iterator[str]:
    """Reasons for skipped configurations in which the unmodified model is too weak."""
    too_weak = rows[(rows["status"] == "skipped") & rows["reason"].str.contains(TOO_WEAK_REASON, na=False)]
    for (kind, n, reason), _ in too_weak.groupby(["retrieval.needles", "seq_len", "reason"], sort=False):
        yield f"{kind}, {int(n):,} tokens: {reason}."


def _make_heatmap(rows: Frame, setting_text: str) -> Heatmap:
    lengths = sorted(rows["seq_len"].astype(int).unique())
    columns = [column for column in rows.columns if column.startswith(DEPTH_PREFIX)]
    depths = sorted(int(column.removeprefix(DEPTH_PREFIX)) for column in columns)
    latest = rows.drop_duplicates(["label", "seq_len"], keep="last").set_index("seq_len")
    grids = []
    for label in dict.fromkeys(rows["label"]):
        by_length = latest[latest["label"] == label].reindex(lengths)
        values = [by_length[f"{DEPTH_PREFIX}{depth}"].tolist() for depth in depths]
        grids.append(HeatmapGrid(label, [[x if units.is_present(x) else None for x in row] for row in values]))
    return Heatmap(
        title=f"Accuracy by depth: {setting_text}",
        caption=f"Accuracy in percent by the needle's depth and the text's length: {setting_text}.",
        grids=tuple(grids),
        column_labels=tuple(units.short_length(n) for n in lengths),
        row_labels=tuple(f"{depth}%" for depth in depths),
        xlabel="tokens",
        ylabel="depth",
    )
