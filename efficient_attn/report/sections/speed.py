"""What a call costs and how that grows: the table of one length, and time, speedup and memory over all lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ...results.section import Section
from .. import select, tables, words
from ..answers.decisions import Board
from ..drawing import plots
from ..gather import Frame
from ..tables import Table
from .blocks import Block, Chapter, Material, explain, find_tops, make_blocks
from .deciding import make_map

INTRO = (
    "Times are medians over rounds in which all variants of a cell take turns; brackets hold 95% intervals. An "
    "exponent is that of the growth with length N, fitted over all measured lengths by least squares on logarithms: 1"
    " is linear, 2 quadratic; 'unclear': its interval spans more than 0.5."
)
PREFILL_SAID = "Prefill takes a whole prompt through one step into a new decode state."
TIME = plots.Kind("time", "latency_ms", "time", "Time", "time a call", plots.MEDIAN, late=1)
_PEAK = f"Output included, inputs not{plots.GROWN}"
MEMORY = plots.Kind("memory", "peak_memory_bytes", "bytes", "Peak memory", "peak memory", _PEAK, late=2)


MOST_SETTINGS = 100  # with tables of their own; of more a page would hold nothing else
DETAILS, DETAILS_ANCHOR = "All lengths, exponents, pairs and backends", "details"


def make_chapter(section: Section, material: Material) -> Chapter:
    """Plots of all that was timed but single steps, which are decoding's."""
    return Chapter(section.title, "", make_blocks(_select_rows(section, material), material, _fill_plots))


def make_details(section: Section, material: Material, boards: Sequence[Board]) -> Chapter:
    """The same rows as tables, for those who open them: every speedup, and what each variant costs at one length."""
    fill = partial(_fill_tables, {select.name_place(board.place): board for board in boards})
    rows = _select_rows(section, material)
    blocks = make_blocks(rows, material, fill, most=MOST_SETTINGS)
    left = rows.groupby(select.SETTING, dropna=False, sort=False).ngroups - MOST_SETTINGS
    if left > 0 and blocks:
        blocks[-1].note = f"{words.count(left, 'more setting')} not shown here: all rows are in rows.csv."
    return Chapter(DETAILS, INTRO + explain(blocks, tables.SAID), blocks, DETAILS_ANCHOR, section.task)


def _select_rows(section: Section, material: Material) -> Frame:
    rows = select.keep_timed(select.keep_task(material.rows, section.task))
    return rows[rows["mode"] != "decode"]


def _fill_plots(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    block.panels += plots.plan_over_length(setting, (plots.SPEEDUP, MEMORY, TIME), scene)


def _fill_tables(boards: Mapping[str, Board], block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for piece, top in find_tops(setting):
        block.say(setting, piece, top)
        block.tables.append(_make_table(setting, piece, top))
        board = boards.get(select.name_place(setting.key | {"mode": piece.mode, "causal": piece.causal}))
        where = words.slice_words(piece.mode, piece.causal)
        every = make_map(board, f"Speedup over {setting.baseline} at all lengths: {where}") if board else None
        block.tables += [every] if every else []


def _make_table(setting: select.Setting, piece: select.Slice, top: Frame) -> Table:
    """What each variant costs at the length that `select.find_headline` chose, and how its cost grows."""
    groups, prefill = select.split_variants(piece.rows), piece.mode == "prefill"
    ran = tables.find_backends(piece.rows)
    rows, found = [], tables.list_shown(top)
    for row in found:
        own = groups[row["label"]]
        shown = [tables.show_name(row), tables.show_speedup(row), tables.show_time(row)]
        shown += [tables.show_rate(row["tokens_per_s"] if prefill else None), tables.show_error(row)]
        shown += [tables.show_passing(row, own), tables.show_growth(own, "latency_ms")]
        shown += [tables.show_size(row["peak_memory_bytes"]), tables.show_growth(own, "peak_memory_bytes")]
        rows.append([*shown, *tables.show_pairs(row, int(row["seq_len"])), tables.show_backend(row, ran)])
    head = ("Variant", f"Speedup over {setting.baseline}", "Time", "Tokens a second", tables.ERROR)
    head = (*head, "Faster from", "Time exponent", "Peak memory", "Memory exponent", *tables.PAIRS, tables.BACKEND)
    where = words.slice_words(piece.mode, piece.causal)
    notes = (PREFILL_SAID if prefill else "", tables.tell_errors(found), tables.tell_gate(found))
    caption = f"{where[:1].upper()}{where[1:]} at length {tables.length_of(top)}"
    said = tables.note(*notes, tables.name_absent(piece.rows, top))
    return tables.trim(Table(caption, head, rows, 1, said, wrapped=(tables.BACKEND,), mode=piece.mode))
