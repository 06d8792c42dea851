"""What a step costs and what is kept for it: after a context, by key-value heads, and for many sequences at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ... import units
from ...results.section import Section
from .. import select, tables, words
from ..drawing import plots
from ..gather import Frame
from ..tables import Shown, Table
from .blocks import Block, Chapter, Material, explain, find_tops, make_blocks

INTRO = (
    "One step adds a position after a context; the state is what a mechanism keeps between steps. An exponent is "
    "'unclear' where its interval spans more than 0.5."
)

TRAFFIC = ("Bytes a token", "Of the bandwidth")
TRAFFIC_SAID = (
    "'Bytes a token' is what any implementation must read and write for one step of one sequence; 'of the bandwidth' "
    "is how fast that went over how fast the machine reads the cache that is named, or else its memory: of memory, "
    "above 100% where the state lay in a cache."
)
CAPACITY = "Longest context"


STEP = plots.Kind("decode", "latency_ms", "time", "Time a step", "time a step", plots.MEDIAN)
_KEPT = f"What is kept between steps{plots.GROWN}"
STATE = plots.Kind("state", "state_bytes", "bytes", "State", "state", _KEPT, late=2)


def make_chapter(section: Section, material: Material) -> Chapter:
    """All single steps; those of several batch sizes once more, beside each other."""
    rows = select.keep_timed(select.keep_task(material.rows, section.task))
    rows = rows[rows["mode"] == "decode"]
    blocks = make_blocks(rows, material, _fill)
    blocks += [Block(title, tables=[table]) for title, table in _make_batch_tables(rows, material.cpus)]
    intro = INTRO + explain(blocks, [*tables.SAID, (TRAFFIC, TRAFFIC_SAID)])
    return Chapter(section.title, intro, blocks)


def _fill(block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for piece, top in find_tops(setting):
        block.say(setting, piece, top)
        by_heads = _make_heads_table(setting, top)
        block.tables += [_make_step_table(setting, piece, top), *([by_heads] if by_heads else [])]
    block.panels += plots.plan_over_length(setting, (STEP, plots.SPEEDUP, STATE), scene)


def _make_step_table(setting: select.Setting, piece: select.Slice, top: Frame) -> Table:
    """What one step costs each variant, and what it keeps for it."""
    groups, ran = select.split_variants(piece.rows), tables.find_backends(piece.rows)
    found = tables.list_shown(top)
    budgets = {row["memory_budget_bytes"] for row in found if units.there(row["memory_budget_bytes"])}
    rows = []
    for row in found:
        own = groups[row["label"]]
        shown = [tables.show_name(row), tables.show_speedup(row), tables.show_time(row)]
        shown += [tables.show_rate(row["tokens_per_s"]), tables.show_error(row)]
        shown += [
            tables.show_size(row["state_bytes"]),
            _show_capacity(row, beside=len(budgets) > 1),
            *_show_traffic(row),
        ]
        shown += [tables.show_growth(own, column) for column in ("latency_ms", "state_bytes")]
        rows.append([*shown, *tables.show_pairs(row, 1), tables.show_backend(row, ran)])
    longest = f"{CAPACITY} in {units.budget(*budgets)}" if len(budgets) == 1 else CAPACITY
    head = ("Variant", f"Speedup over {setting.baseline}", "Time a step", "Tokens a second", tables.ERROR)
    head = (*head, "State", longest, *TRAFFIC, "Time exponent", "State exponent", *tables.PAIRS, tables.BACKEND)
    caption = f"Decoding after a context of {tables.length_of(top)}"
    notes = (tables.tell_errors(found), tables.tell_gate(found), tables.name_absent(piece.rows, top))
    return tables.trim(Table(caption, head, rows, 1, tables.note(*notes), wrapped=(tables.BACKEND,), mode="decode"))


def _show_traffic(row: dict[str, Any]) -> list[Shown]:
    moved, share = row["bytes_moved"], row["bandwidth_share"]
    each = moved / row["batch"] if units.there(moved) and units.there(row["batch"]) else None
    cache = f" of {row['read_from']}" if row["read_from"] not in (None, "memory") else ""
    used = Shown(f"{units.number(100 * share)}%{cache}", share) if units.there(share) else Shown(units.NONE)
    return [tables.show_size(each), used]


def _show_capacity(row: dict[str, Any], *, beside: bool) -> Shown:
    """The longest context; beside its budget where that differs within a table."""
    budget, longest = row["memory_budget_bytes"], row["longest_context"]
    if not units.there(budget):
        return Shown(units.NONE)
    text = f"{longest:,}" if units.there(longest) else "any"
    return Shown(f"{text} in {units.budget(budget)}" if beside else text, longest if text != "any" else float("inf"))


# -- by key-value heads, by batch size ------------------------------------------------------------------------------


def _make_heads_table(setting: select.Setting, top: Frame) -> Table | None:
    """A step of each variant that was measured with several numbers of key-value heads; None where none was."""
    found: dict[str, dict[int, Shown]] = {}
    for row in tables.list_shown(top):
        if units.there(row["kv_heads"]):
            heads = int(row["kv_heads"])
            name = row["label"].replace(f" (kv_heads={heads})", "")
            found.setdefault(name, {})[heads] = _show_time_and_speedup(row)
    several = {name: cells for name, cells in found.items() if len(cells) > 1}
    if not several:
        return None
    counts = sorted({heads for cells in several.values() for heads in cells}, reverse=True)
    caption = f"A step by key-value heads, after a context of {tables.length_of(top)}"
    caption += f", with its speedup over {setting.baseline}" if top["speedup"].notna().any() else ""
    return _make_grid(caption, several, {heads: words.count(heads, "key-value head") for heads in counts})


def _show_time_and_speedup(row: dict[str, Any]) -> Shown:
    time, speedup = units.duration(row["latency_ms"]), tables.show_speedup(row)
    return speedup._replace(text=f"{time}, {speedup.text}" if speedup.text != units.NONE else time)


def _make_batch_tables(rows: Frame, cpus: dict[str, str]) -> Iterator[tuple[str, Table]]:
    """What becomes of the tokens a second when more sequences are decoded at once, a table for all else that must
    agree, with its name: only where there are several batch sizes."""
    setting = [name for name in select.SETTING if name != "batch"]
    for values, part in rows.groupby([*setting, "causal"], dropna=False, sort=False):
        table = _make_batch_table(part[part["tokens_per_s"].notna()])
        if table:
            yield words.setting_words(dict(zip(setting, values, strict=False)), cpus), table


def _make_batch_table(rows: Frame) -> Table | None:
    """Of variants with several of them, at the context where most were measured, the longest such."""
    measured = rows.groupby("seq_len")["batch"].nunique()
    if measured.max() < 2:
        return None
    top = rows[rows["seq_len"] == measured[measured == measured.max()].index.max()]
    top = top.sort_values(["batch", "tokens_per_s"], ascending=False, kind="stable")  # the fastest at the largest first
    found: dict[str, dict[int, Shown]] = {}
    for row in tables.list_shown(top):
        found.setdefault(row["label"], {})[int(row["batch"])] = tables.show_rate(row["tokens_per_s"])
    several = {name: cells for name, cells in found.items() if len(cells) > 1}
    if not several:
        return None
    caption = f"Tokens a second by batch size, after a context of {tables.length_of(top)}"
    return _make_grid(caption, several, {batch: f"Batch {batch}" for batch in sorted(top["batch"].unique())})


def _make_grid(caption: str, found: dict[str, dict[int, Shown]], columns: dict[int, str]) -> Table:
    """A row a name, a column a number."""
    nothing = Shown(units.NONE)
    body: Sequence[Sequence[Shown]] = [
        [Shown(name, name), *(cells.get(column, nothing) for column in columns)] for name, cells in found.items()
    ]
    return Table(caption, ("Variant", *columns.values()), body)
