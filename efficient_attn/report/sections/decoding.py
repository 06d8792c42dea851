"""The tables of decoding: a step behind a context, then by key-value heads, then many sequences at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .. import select, tables, words
from ..gather import Frame
from ..tables import Shown, Table

TRAFFIC = ("Bytes a token", "Of the bandwidth")
TRAFFIC_SAID = (
    "'Bytes a token' is what any implementation must read and write for one step of one sequence; 'of the bandwidth' "
    "is how fast that went over how fast the machine reads its memory: above 100% where the state lay in a cache."
)
CAPACITY = "Longest context"


def tables_of(setting: select.Setting, cell: select.Cell, top: Frame) -> list[Table]:
    """What is shown of one cell at the context that `select.headline` chose."""
    by_heads = _by_heads(setting, top)
    return [_step(setting, cell, top), *([by_heads] if by_heads else [])]


def _step(setting: select.Setting, cell: select.Cell, top: Frame) -> Table:
    """What one step costs each variant, and what it keeps for it."""
    groups, ran = select.variants(cell.rows), tables.served(cell.rows)
    found = tables.records(top)
    budgets = {row["memory_budget_bytes"] for row in found if words.there(row["memory_budget_bytes"])}
    rows = []
    for row in found:
        own = groups[row["label"]]
        shown = [tables.name_cell(row), tables.backend_cell(row, ran), tables.time_cell(row)]
        shown += [tables.rate_cell(row["tokens_per_s"]), tables.speedup_cell(row)]
        shown += [tables.size_cell(row["state_bytes"]), _capacity(row, told=len(budgets) > 1), *_traffic(row)]
        shown += [tables.growth_cell(own, column) for column in ("latency_ms", "state_bytes")]
        rows.append([*shown, *tables.pairs_cells(row, 1)])
    longest = f"{CAPACITY} in {words.budget(*budgets)}" if len(budgets) == 1 else CAPACITY
    head = ("Variant", "Backend", "Time a step", "Tokens a second", f"Speedup over {setting.baseline}", "State")
    head = (*head, longest, *TRAFFIC, "Time exponent", "State exponent", *tables.PAIRS)
    caption = f"Decoding behind a context of {tables.length_of(top)}"
    return tables.trimmed(Table(caption, head, rows, 2, tables.absent(cell, top)))


def _traffic(row: dict[str, Any]) -> list[Shown]:
    moved, share = row["bytes_moved"], row["bandwidth_share"]
    each = moved / row["batch"] if words.there(moved) and words.there(row["batch"]) else None
    used = Shown(f"{words.number(100 * share)}%", share) if words.there(share) else Shown(words.NONE)
    return [tables.size_cell(each), used]


def _capacity(row: dict[str, Any], *, told: bool) -> Shown:
    """The longest context; beside its budget where that differs within a table."""
    budget, longest = row["memory_budget_bytes"], row["longest_context"]
    if not words.there(budget):
        return Shown(words.NONE)
    text = f"{longest:,}" if words.there(longest) else "any"
    return Shown(f"{text} in {words.budget(budget)}" if told else text, longest if text != "any" else float("inf"))


# -- by key-value heads, by batch size ------------------------------------------------------------------------------


def _by_heads(setting: select.Setting, top: Frame) -> Table | None:
    """A step of each variant that was measured with several numbers of key-value heads; None where none was."""
    found: dict[str, dict[int, Shown]] = {}
    for row in tables.records(top):
        if words.there(row["kv_heads"]):
            heads = int(row["kv_heads"])
            name = row["label"].replace(f" (kv_heads={heads})", "")
            found.setdefault(name, {})[heads] = _time_and_speedup(row)
    several = {name: cells for name, cells in found.items() if len(cells) > 1}
    if not several:
        return None
    counts = sorted({heads for cells in several.values() for heads in cells}, reverse=True)
    caption = f"A step by key-value heads, behind a context of {tables.length_of(top)}"
    caption += f", with its speedup over {setting.baseline}" if top["speedup"].notna().any() else ""
    return _grid(caption, several, {heads: words.counted(heads, "key-value head") for heads in counts})


def _time_and_speedup(row: dict[str, Any]) -> Shown:
    time, speedup = words.duration(row["latency_ms"]), tables.speedup_cell(row)
    return speedup._replace(text=f"{time}, {speedup.text}" if speedup.text != words.NONE else time)


def by_batch(rows: Frame, cpus: dict[str, str]) -> Iterator[tuple[str, Table]]:
    """What becomes of the tokens a second when more sequences are decoded at once, a table for all else that must
    agree, with its name: only where there are several batch sizes."""
    setting = [name for name in select.SETTING if name != "batch"]
    for values, part in rows.groupby([*setting, "causal"], dropna=False, sort=False):
        table = _by_batch(part[part["tokens_per_s"].notna()])
        if table:
            yield words.setting_words(dict(zip(setting, values, strict=False)), cpus), table


def _by_batch(rows: Frame) -> Table | None:
    """Of variants with several of them, at the context where most were measured, the longest such."""
    measured = rows.groupby("seq_len")["batch"].nunique()
    if measured.max() < 2:
        return None
    top = rows[rows["seq_len"] == measured[measured == measured.max()].index.max()]
    top = top.sort_values(["batch", "tokens_per_s"], ascending=False, kind="stable")  # the fastest at the largest first
    found: dict[str, dict[int, Shown]] = {}
    for row in tables.records(top):
        found.setdefault(row["label"], {})[int(row["batch"])] = tables.rate_cell(row["tokens_per_s"])
    several = {name: cells for name, cells in found.items() if len(cells) > 1}
    if not several:
        return None
    caption = f"Tokens a second by batch size, behind a context of {tables.length_of(top)}"
    return _grid(caption, several, {batch: f"Batch {batch}" for batch in sorted(top["batch"].unique())})


def _grid(caption: str, found: dict[str, dict[int, Shown]], columns: dict[int, str]) -> Table:
    """A row a name, a column a number."""
    nothing = Shown(words.NONE)
    body: Sequence[Sequence[Shown]] = [
        [Shown(name, name), *(cells.get(column, nothing) for column in columns)] for name, cells in found.items()
    ]
    return Table(caption, ("Variant", *columns.values()), body)
