"""What to use: a table a place, a line a mechanism, and the answers to what everybody asks in its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ... import units
from .. import losses, tables, words
from ..answers import crossovers
from ..answers.decisions import Board, Decision
from ..tables import Shown, Table
from .blocks import Block, Chapter, Material

TITLE, ANCHOR = "What to use", "decide"
MOST_OPEN, MOST_BOARDS, MOST_LINES = 5, 24, 50
MODES = ("forward", "forward_backward", "prefill", "decode")  # in this order
INTRO = (
    "A speedup is the paired ratio of the baseline's time over the mechanism's: \u25b2 its 95% interval, in brackets,"
    " lies above 1, \u25bc below, \u2248 it holds 1. 'Faster from' says from which length on every interval lies "
    "above 1, of the lengths at which baseline and mechanism were both measured: '<=256' from the shortest of them; "
    "'at 8K' at the only one; '512\u20131K' slower at the one, faster from the other on; 'by 4K' from there on, and "
    "not shown to be slower before; 'none up to 4K' slower even there; 'unclear' where intervals hold 1. What follows"
    " 'about' is interpolated between measured lengths, in logarithms: where the speedup passes 1, and where its "
    "interval's ends do. The loss is that of the same mechanism against exact attention: the error is the norm of the"
    " difference over the norm of exact attention. Memory is the peak of a call over the baseline's; the state is "
    "what decoding keeps."
)


def make_chapter(boards: Sequence[Board], material: Material) -> Chapter:
    """Of each mode the boards with most lines and lengths first; of many the first are open, the last only counted."""
    ordered = sorted(boards, key=_rank)
    several = len({board.baseline for board in boards}) > 1
    blocks: dict[str, Block] = {}
    seen: set[tuple[str, bool]] = set()
    for board in ordered[:MOST_BOARDS]:
        title = words.setting_words(dict(board.place), material.cpus)
        block, kind = blocks.setdefault(title, _begin(title, board)), (board.place["mode"], board.place["causal"])
        table = _make_table(board, f"against {board.baseline}" if several else "")
        block.tables.append(replace(table, folded=kind in seen or len(seen) >= MOST_OPEN))
        seen.add(kind)
    left = len(ordered) - MOST_BOARDS
    if left > 0:
        list(blocks.values())[-1].note = f"{words.count(left, 'more place')} not shown here: all rows are in rows.csv."
    return Chapter(TITLE, INTRO, list(blocks.values()), ANCHOR, "speed")


def _begin(title: str, board: Board) -> Block:
    device = board.place["device"]
    return Block(title, device=str(device) if units.there(device) else None)


def _rank(board: Board) -> tuple[int, ...]:
    mode = board.place["mode"]
    place = MODES.index(mode) if mode in MODES else len(MODES)
    return place, -len(board.decisions), -len(board.lengths), -board.lengths[-1]


def _make_table(board: Board, where: str) -> Table:
    mode, causal = board.place["mode"], board.place["causal"]
    what = words.slice_words(mode, None if mode == "decode" else causal)
    caption = f"{TITLE}: {', '.join(filter(None, (what, where)))}"
    speedups = [f"{'After' if mode == 'decode' else 'At'} {units.short_length(n)}" for n in board.lengths]
    head = ("Mechanism", "Faster from", *speedups, "Loss", "Memory", "State")
    body = [_make_line(decision, board) for decision in board.decisions[:MOST_LINES]]
    return tables.trim(Table(caption, head, body, note=_make_note(board), wrapped=("Faster from", "Loss"), mode=mode))


def _make_line(decision: Decision, board: Board) -> list[Shown]:
    shown = [Shown(decision.label, decision.label), _show_passing(decision)]
    shown += [_show_speedup(decision, length) for length in board.lengths]
    shown.append(Shown(decision.loss if decision.error is not None else losses.NOT_MEASURED, decision.error))
    at_another = decision.memory_at is not None and decision.memory_at != board.lengths[-1]
    memory = units.ratio(decision.memory) + (f" at {units.short_length(decision.memory_at)}" if at_another else "")
    return [*shown, Shown(memory, decision.memory), _show_state(decision)]


def _show_passing(decision: Decision) -> Shown:
    """From where on; what is read first on a phone stands below it: the speedup at the longest length, and the loss."""
    if decision.passing is None:
        return Shown(units.NONE)
    said, between = crossovers.tell(decision.passing), crossovers.tell_between(decision.passing)
    length, found = decision.last or (0, None)
    phone = (f"{units.ratio(*found)} at {units.short_length(length)}", decision.loss) if found else ()
    return Shown(said, decision.passing.rank, small=between, phone=phone)


def _show_speedup(decision: Decision, length: int) -> Shown:
    found = decision.speedups.get(length)
    if found is None:
        return Shown(units.NONE)
    row = {"is_baseline": False, "speedup": found.value, "speedup_low": found.low, "speedup_high": found.high}
    return tables.show_speedup(row)


def _show_state(decision: Decision) -> Shown:
    """Its bytes where they were measured at this shape, and its share of the baseline's."""
    if decision.state_at is None:
        return Shown(units.NONE)
    share = f"{units.percent(decision.state_share)} of the baseline's" if decision.state_share is not None else ""
    size = units.size(decision.state) if decision.state is not None else ""
    text, at = (size, share) if size else (share, ""), f"at {units.short_length(decision.state_at)}"
    return Shown(text[0], decision.state or decision.state_share, small=", ".join(filter(None, (text[1], at))))


def _make_note(board: Board) -> str:
    """What the table's numbers are over, and on what errors were measured."""
    told = [f"Speedups and memory are over {board.baseline}'s."]
    where = dict.fromkeys(decision.error_on for decision in board.decisions if decision.error_on)
    told.append(f"Errors were measured on {'; '.join(where)}." if where else "Losses were not measured in these rows.")
    left = len(board.decisions) - MOST_LINES
    told += [f"{left} more with smaller speedups stand in the tables of all lengths, below."] if left > 0 else []
    return tables.note(*told)


# -- all lengths ----------------------------------------------------------------------------------------------------


def make_map(board: Board, caption: str) -> Table | None:
    """Every measured speedup of a board, shaded by how much faster or slower; None for one length alone."""
    lengths = sorted({n for decision in board.decisions for n in decision.speedups})
    if len(lengths) < 2:
        return None
    shown, left = board.decisions[:MOST_SHADED], len(board.decisions) - MOST_SHADED
    body = [[Shown(d.label, d.label), *(_shade(d.speedups, n) for n in lengths)] for d in shown]
    more = f"{left} more with smaller speedups are in rows.csv." if left > 0 else ""
    head = ("Mechanism", *map(units.short_length, lengths))
    return Table(caption, head, body, note=tables.note(SHADES, more), mode=board.place["mode"])


SHADES = "Shades: an interval above 1 or below it, in steps of 1.5, 4 and 16 times. Without a shade it holds 1."
MOST_SHADED = 100
_STEPS = (1.5, 4.0, 16.0)


def _shade(speedups: Mapping[int, Any], length: int) -> Shown:
    found = speedups.get(length)
    if found is None:
        return Shown(units.NONE)
    kind = words.verdict(found.low, found.high)
    factor = max(found.value, 1 / found.value)
    mark = f"{kind}-{sum(factor >= step for step in _STEPS)}" if kind in ("faster", "slower") else ""
    return Shown(units.ratio(found.value), found.value, mark)
