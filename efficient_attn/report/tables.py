"""The tables of a report: cells as people read them, with the number behind each for sorting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from . import select, words
from .gather import Column, Frame


class Shown(NamedTuple):
    """A cell: its text, the value it sorts by, and a mark (faster, slower, unclear, base) that gives it a look."""

    text: str
    sort: float | str | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """What both pages print. The first column names its row; ``numeric`` columns stand to the right."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[Shown]]
    text_columns: int = 1
    note: str = ""


# of a row, what the tables of costs show
SHOWN = [
    *("label", "is_baseline", "latency_ms", "latency_ms_low", "latency_ms_high", "speedup", "speedup_low"),
    *("speedup_high", "tokens_per_s", "peak_memory_bytes", "state_bytes"),
]
MARKS = {"faster": "\u25b2", "slower": "\u25bc", "unclear": "\u2248"}


def records(rows: Frame) -> list[dict[str, Any]]:
    """What the tables show of each row; column by column, which is faster than pandas' own."""
    return [dict(zip(SHOWN, row, strict=True)) for row in zip(*(rows[name].tolist() for name in SHOWN), strict=True)]


def headline(setting: select.Setting, cell: select.Cell, top: Frame) -> Table:
    """What each variant costs at the length that `select.headline` chose, and how its cost grows."""
    groups = select.variants(cell.rows)
    rows = []
    for row in records(top):
        own = groups[row["label"]]
        shown = [_name(row), _time(row), _speedup(row), _worth(row, own), _growth(own, "latency_ms")]
        rows.append([*shown, _size(row["peak_memory_bytes"]), _growth(own, "peak_memory_bytes")])
    head = ("Variant", "Time", f"Speedup over {setting.baseline}", "Faster from", "Time exponent", "Peak memory")
    where = words.cell_words(cell.mode, cell.causal)
    caption = f"{_capital(where)} at length {_length(top)}"
    return _trimmed(Table(caption, (*head, "Memory exponent"), rows, note=_absent(cell, top)))


def decoding(setting: select.Setting, cell: select.Cell, top: Frame) -> Table:
    """What one decoding step costs behind the context that `select.headline` chose."""
    groups = select.variants(cell.rows)
    rows = []
    for row in records(top):
        own, speed = groups[row["label"]], row["tokens_per_s"]
        shown = [_name(row), _time(row), Shown(words.rate(speed), _number(speed)), _speedup(row)]
        shown += [_growth(own, "latency_ms"), _size(row["state_bytes"]), _growth(own, "state_bytes")]
        rows.append(shown)
    head = ("Variant", "Time a step", "Tokens a second", f"Speedup over {setting.baseline}", "Time exponent")
    caption = f"Decoding behind a context of {_length(top)}"
    return _trimmed(Table(caption, (*head, "State", "State exponent"), rows, note=_absent(cell, top)))


def fidelity(cell: select.Cell) -> Table:
    """How far each variant is from exact attention, averaged over layers, beside predictors that know nothing."""
    columns = ["relative_error", "mean_value_error", "cosine_similarity", "total_variation", "missed_mass"]
    columns.append("effective_keys")
    rows = cell.rows
    means = rows.groupby("label", sort=False)[columns].mean().sort_values("relative_error", kind="stable")
    worst = rows.groupby("label")["oracle_error"].max()
    body = []
    for label, mean in means.iterrows():
        first, null, *rest = (_value(mean[column]) for column in columns)
        body.append([Shown(str(label), str(label)), first, null, _value(1.0), *rest, _value(worst[label])])
    head = ("Variant", "Relative error", "Null: mean of v", "Null: zero", "Cosine similarity", "Total variation")
    layers = rows["layer"].nunique()
    over = f", mean over {words.counted(layers, 'layer')}" if layers > 1 else ""
    note = "An approximation that does not stay well below both nulls has lost what attention adds."
    head = (*head, "Missed mass", "Effective keys", "Error against own oracle (worst)")
    return _trimmed(Table(f"Distance from exact attention{_where(cell)}{over}", head, body, note=note))


def layers(cell: select.Cell) -> Table | None:
    """The relative error of each variant in each layer, the nulls below; None where there is one layer or none."""
    rows = cell.rows
    if rows["layer"].nunique() < 2:
        return None
    errors = rows.pivot(index="label", columns="layer", values="relative_error")
    errors = errors.loc[errors.mean(axis=1).sort_values(kind="stable").index]
    body = [_values(str(label), line) for label, line in zip(errors.index, errors.to_numpy(), strict=True)]
    null = rows.groupby("layer")["mean_value_error"].median().reindex(errors.columns)
    named = [("null: mean of v", null.tolist()), ("null: zero", [1.0] * len(null))]
    body += [_values(name, values, "null") for name, values in named if not pd.isna(values).all()]
    head = ("Variant", *(f"Layer {int(layer)}" for layer in errors.columns))
    return Table(f"Relative error by layer{_where(cell)}", head, body)


def not_ok(rows: Frame, cpus: dict[str, str]) -> Table | None:
    """Everything that did not run, with its reason; what differs in nothing but lengths or names shares a line."""
    lost = rows[rows["status"] != "ok"]
    if lost.empty:
        return None
    apart = [name for name in select.SETTING if name == "device" or rows[name].nunique(dropna=False) > 1]
    alike = words.setting_words({n: rows[n].iloc[0] for n in select.SETTING if n not in apart}, cpus)
    body = []
    for known, lengths, names in _alike(lost):
        where = words.setting_words({name: known[name] for name in apart}, cpus)
        body.append(_lost(known, lengths, names, where))
    caption = f"{words.counted(len(lost), 'case')} of {len(rows)} did not give a result"
    head = ("Status", "Variants", "What", "Lengths", "Cases", "Where", "Reason")
    return Table(caption, head, body, text_columns=7, note=f"All of them: {alike}." if alike else "")


def _alike(lost: Frame) -> Iterator[tuple[dict[str, Any], tuple[int, ...], dict[str, int]]]:
    """Rows that did not run by what they have in common: that, their lengths, and each variant's number of cases."""
    place = [*select.SETTING, "task", "mode", "causal", "inputs", "layer", "status", "reason"]
    alone: dict[tuple[Any, ...], list[Any]] = {}
    for *values, length in zip(*(lost[name].tolist() for name in [*place, "label", "seq_len"]), strict=True):
        known = tuple(value if words.there(value) else None for value in values)
        alone.setdefault(known, []).append(length)
    groups: dict[tuple[Any, ...], dict[str, int]] = {}
    for (*values, label), found in alone.items():
        lengths = tuple(sorted({int(length) for length in found if words.there(length)}))
        groups.setdefault((*values, lengths), {})[label] = len(found)
    for (*values, lengths), names in groups.items():
        yield dict(zip(place, values, strict=True)), lengths, names


def _lost(place: dict[str, Any], lengths: tuple[int, ...], names: dict[str, int], where: str) -> list[Shown]:
    task = None if place["mode"] else place["task"]
    layer = None if place["layer"] is None else f"layer {int(place['layer'])}"
    what = ", ".join(filter(None, (task, words.cell_words(place["mode"], place["causal"]), place["inputs"], layer)))
    told = [place["status"], ", ".join(names), what or words.NONE, ", ".join(map(str, lengths)) or words.NONE]
    cases, reason = sum(names.values()), place["reason"] or "no reason was given"
    return [*(Shown(text, text) for text in told), Shown(str(cases), cases), Shown(where), Shown(reason, reason)]


LONGEST_FACT = 300  # characters of one line about the environment; torch describes its build in thousands

# always shown, even if they are the same in all rows; the case's key, long and unique, is left to the CSV file
KEPT = (
    *("variant", "status", "reason", "mode", "seq_len", "latency_ms"),
    *("pairs", "pairs_computed", "stop_reason", "backend_used"),
)


def everything(rows: Frame) -> tuple[list[str], list[list[str]], list[tuple[str, str]]]:
    """All rows as text: the columns that vary, their cells, and apart from them the columns that hold one value."""
    same, varying = [], []
    for name in rows.columns:
        values = rows[name]
        if name in KEPT and values.notna().any():
            varying.append(name)
        elif name != "case_key" and values.notna().any():
            one = values.nunique(dropna=False) == 1 and len(rows) > 1
            (same if one else varying).append(name)
    columns = [_texts(rows[name]) for name in varying]
    cells = [list(row) for row in zip(*columns, strict=True)]
    return varying, cells, [(name, _texts(rows[name].head(1))[0]) for name in same]


def _texts(values: Column) -> list[str]:
    floats = pd.api.types.is_float_dtype(values.dtype)
    said = ("" if v is pd.NA or v is None or v != v else f"{v:.5g}" if floats else str(v) for v in values.tolist())
    return list(said)


def environments(found: Iterable[tuple[str, dict[str, Any]]]) -> Table | None:
    """Where the runs were made: a line for everything that is known, a column for each environment that differs."""
    several: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run, environment in found:
        names = several.setdefault(tuple(_flat(environment)), [])
        names += [] if run in names else [run]
    keys = dict.fromkeys(key for flat in several for key, _ in flat)
    if not keys:
        return None
    known = [dict(flat) for flat in several]
    body = [[Shown(key, key), *(Shown(d.get(key, words.NONE), d.get(key, "")) for d in known)] for key in keys]
    return Table("Environment", ("What", *(", ".join(names) for names in several.values())), body, text_columns=99)


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """Nested dicts as dotted names; sizes in units as well."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif value not in (None, "", [], ()):
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        text = text if len(text) <= LONGEST_FACT else f"{text[:LONGEST_FACT]}... (whole in run.json)"
        yield name, f"{words.size(value)} ({value})" if name.endswith("_bytes") and isinstance(value, int) else text


def _name(row: dict[str, Any]) -> Shown:
    return Shown(row["label"], row["label"], "base" if row["is_baseline"] else "")


def _time(row: dict[str, Any]) -> Shown:
    value, low, high = row["latency_ms"], row["latency_ms_low"], row["latency_ms_high"]
    return Shown(words.duration(value, low, high), _number(value))


def _speedup(row: dict[str, Any]) -> Shown:
    value, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
    if row["is_baseline"]:
        return Shown("baseline", 1.0, "base")
    mark = words.verdict(low, high) if words.there(value) else ""
    return Shown(f"{words.ratio(value, low, high)} {MARKS.get(mark, '')}".rstrip(), _number(value), mark)


def _worth(row: dict[str, Any], own: select.Columns) -> Shown:
    """The length from which the variant is shown to be faster at every length up to the longest."""
    if row["is_baseline"] or np.isnan(own["speedup"]).all():
        return Shown(words.NONE)
    start = select.worth_from(own)
    return Shown("not shown", float("inf")) if start is None else Shown(str(start), start)


def _growth(own: select.Columns, column: str) -> Shown:
    found = select.growth(own, column)
    return Shown(words.power(*found), found.value) if found else Shown(words.NONE)


def _size(value: Any) -> Shown:
    return Shown(words.size(value), _number(value))


def _value(value: Any) -> Shown:
    return Shown(words.number(value), _number(value))


def _values(label: str, values: Iterable[Any], mark: str = "") -> list[Shown]:
    return [Shown(label, label, mark), *map(_value, values)]


def _number(value: Any) -> float | None:
    return float(value) if words.there(value) and np.isfinite(float(value)) else None


def _trimmed(table: Table) -> Table:
    """The table without the columns in which nothing was measured."""
    empty = (words.NONE, "baseline")
    kept = [i for i in range(len(table.head)) if not i or any(row[i].text not in empty for row in table.rows)]
    rows = [[row[i] for i in kept] for row in table.rows]
    return Table(table.caption, tuple(table.head[i] for i in kept), rows, table.text_columns, table.note)


def _absent(cell: select.Cell, top: Frame) -> str:
    """Who was measured, but not at this length: it must not just vanish from the table."""
    others = [label for label in dict.fromkeys(cell.rows["label"]) if label not in set(top["label"])]
    return f"Measured at other lengths only: {words.listed(others)}." if others else ""


def _length(top: Frame) -> str:
    return f"{int(top['seq_len'].iloc[0])}"


def _where(cell: select.Cell) -> str:
    told = words.inputs_words(cell.inputs, cell.causal, cell.length)
    return f": {told}" if told else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
