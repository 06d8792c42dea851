"""What a call costs and how that grows: the table of one length, and time, speedup and memory over all lengths."""

from __future__ import annotations

from ...results.section import Section
from .. import select, tables, words
from ..drawing import plots
from ..gather import Frame
from ..tables import Table
from .blocks import Block, Chapter, Material, explain, find_tops, make_blocks

INTRO = (
    "Times are medians over rounds in which all variants of a cell take turns; brackets hold 95% intervals. A speedup "
    "is the paired ratio of the baseline's time over the variant's: \u25b2 its interval lies above 1, \u25bc below, "
    "\u2248 it holds 1. 'Faster from' says from which length on every interval lies above 1, of the lengths at which "
    "baseline and variant were both measured: '<=256' from the shortest of them; '512\u20131K' slower at the one, faster "
    "from the other on; 'by 4K' from there on, and not shown to be slower before; 'none up to 4K' slower even there; "
    "'unclear' where intervals hold 1. An exponent is that of the growth with length N, fitted over all measured "
    "lengths by least squares on logarithms: 1 is linear, 2 quadratic; 'unclear': its interval spans more than 0.5."
)
PREFILL_SAID = "Prefill takes a whole prompt through one step into a new decode state."
TIME = plots.Kind("time", "latency_ms", "time", "Time", "time a call", plots.MEDIAN)
_PEAK = f"Output included, inputs not{plots.GROWN}"
MEMORY = plots.Kind("memory", "peak_memory_bytes", "bytes", "Peak memory", "peak memory", _PEAK, late=2)


def make_chapter(section: Section, material: Material) -> Chapter:
    """All that was timed but single steps, which are decoding's."""
    rows = select.keep_timed(select.keep_task(material.rows, section.task))
    blocks = make_blocks(rows[rows["mode"] != "decode"], material, _fill)
    return Chapter(section.title, INTRO + explain(blocks, tables.SAID), blocks)


def _fill(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for piece, top in find_tops(setting):
        block.say(setting, piece, top)
        block.tables.append(_make_table(setting, piece, top))
    block.panels += plots.plan_over_length(setting, (TIME, plots.SPEEDUP, MEMORY), scene)


def _make_table(setting: select.Setting, piece: select.Slice, top: Frame) -> Table:
    """What each variant costs at the length that `select.find_headline` chose, and how its cost grows."""
    groups, prefill = select.split_variants(piece.rows), piece.mode == "prefill"
    ran = tables.find_backends(piece.rows)
    rows, found = [], tables.list_shown(top)
    for row in found:
        own = groups[row["label"]]
        shown = [tables.show_name(row), tables.show_backend(row, ran), tables.show_time(row)]
        shown += [tables.show_rate(row["tokens_per_s"] if prefill else None), tables.show_speedup(row)]
        shown += [tables.show_error(row), tables.show_passing(row, own), tables.show_growth(own, "latency_ms")]
        shown += [tables.show_size(row["peak_memory_bytes"]), tables.show_growth(own, "peak_memory_bytes")]
        rows.append([*shown, *tables.show_pairs(row, int(row["seq_len"]))])
    head = ("Variant", "Backend", "Time", "Tokens a second", f"Speedup over {setting.baseline}", tables.ERROR)
    head = (*head, "Faster from", "Time exponent", "Peak memory", "Memory exponent", *tables.PAIRS)
    where = words.slice_words(piece.mode, piece.causal)
    notes = (PREFILL_SAID if prefill else "", tables.tell_errors(found), tables.tell_gate(found))
    caption = f"{where[:1].upper()}{where[1:]} at length {tables.length_of(top)}"
    return tables.trim(Table(caption, head, rows, 2, tables.note(*notes, tables.name_absent(piece.rows, top))))
