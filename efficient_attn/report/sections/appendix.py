"""What stands at a report's end: what did not run, all rows, and where the runs were made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ... import units
from .. import select, words
from ..command import tell_command
from ..gather import Column, Frame
from ..tables import Shown, Table
from .learned import drop_needless


def list_lost(rows: Frame, cpus: dict[str, str]) -> Table | None:
    """Everything that did not run, with its reason; what differs in nothing but lengths or names shares a line."""
    rows = drop_needless(rows)
    lost = rows[rows["status"] != "ok"]
    if lost.empty:
        return None
    apart = [name for name in select.SETTING if name == "device" or rows[name].nunique(dropna=False) > 1]
    alike = words.setting_words({n: rows[n].iloc[0] for n in select.SETTING if n not in apart}, cpus)
    body = []
    for known, lengths, names in _group_alike(lost):
        where = words.setting_words({name: known[name] for name in apart}, cpus)
        body.append(_show_lost(known, lengths, names, where))
    caption = f"{words.count(len(lost), 'case')} of {len(rows)} did not give a result"
    head = ("Status", "Variants", "What", "Lengths", "Cases", "Where", "Reason")
    return Table(caption, head, body, text_columns=7, note=f"All of them: {alike}." if alike else "")


def _group_alike(lost: Frame) -> Iterator[tuple[dict[str, Any], tuple[int, ...], dict[str, int]]]:
    """Rows that did not run by what they have in common: that, their lengths, and each variant's number of cases."""
    place = [*select.SETTING, "task", "mode", "causal", "inputs", "layer", "status", "reason"]
    alone: dict[tuple[Any, ...], list[Any]] = {}
    for *values, length in zip(*(lost[name].tolist() for name in [*place, "label", "seq_len"]), strict=True):
        known = tuple(value if units.there(value) else None for value in values)
        alone.setdefault(known, []).append(length)
    groups: dict[tuple[Any, ...], dict[str, int]] = {}
    for (*values, label), found in alone.items():
        lengths = tuple(sorted({int(length) for length in found if units.there(length)}))
        groups.setdefault((*values, lengths), {})[label] = len(found)
    for (*values, lengths), names in groups.items():
        yield dict(zip(place, values, strict=True)), lengths, names


def _show_lost(place: dict[str, Any], lengths: tuple[int, ...], names: dict[str, int], where: str) -> list[Shown]:
    task = place["task"] if place["mode"] in (None, "train") else None
    layer = None if place["layer"] is None else f"layer {int(place['layer'])}"
    what = ", ".join(filter(None, (task, words.slice_words(place["mode"], place["causal"]), place["inputs"], layer)))
    texts = [place["status"], ", ".join(names), what or units.NONE, ", ".join(map(str, lengths)) or units.NONE]
    cases, reason = sum(names.values()), place["reason"] or "no reason was given"
    return [*(Shown(text, text) for text in texts), Shown(str(cases), cases), Shown(where), Shown(reason, reason)]


MOST_ROWS = 2000  # that a page holds; of more it holds what they come to
MEDIANS = ("speedup", "relative_error", "accuracy")  # what may be summed over unlike sizes
LONGEST_FACT = 300  # characters of one line about the environment; torch describes its build in thousands

# always shown, even if they are the same in all rows; the case's key, long and unique, is left to the CSV file
KEPT = (
    *("variant", "status", "reason", "mode", "seq_len", "latency_ms"),
    *("pairs", "pairs_computed", "stop_reason", "backend_used"),
)


@dataclass(frozen=True)
class Rows:
    """All rows as text: the columns that vary and their cells, and apart from them the columns that hold one value.

    count: of the rows. summed: whether a line stands for several of them, because they are too many for a page.
    """

    names: list[str]
    cells: list[list[str]]
    same: list[tuple[str, str]]
    count: int
    summed: bool = False


def list_rows(rows: Frame) -> Rows:
    """The rows as they are; of more than a page holds, what they come to."""
    count = len(rows)
    if count > MOST_ROWS:
        rows = sum_up_rows(rows)
    same, varying = [], []
    for name in rows.columns:
        values = rows[name]
        if name in KEPT and values.notna().any():
            varying.append(name)
        elif name != "case_key" and values.notna().any():
            one = values.nunique(dropna=False) == 1 and len(rows) > 1
            (same if one else varying).append(name)
    columns = [_as_texts(rows[name]) for name in varying]
    cells = [list(row) for row in zip(*columns, strict=True)]
    return Rows(varying, cells, [(name, _as_texts(rows[name].head(1))[0]) for name in same], count, count > MOST_ROWS)


# by what rows are summed, the finest that leaves few enough lines; the last always does, but for thousands of variants
SUMMED_BY = (
    ("variant", "task", "mode", "causal", "device", "dtype", "status"),
    ("variant", "task", "mode", "device", "status"),
    ("variant", "status"),
    ("family", "task", "mode", "device", "status"),
)


def _group(rows: Frame, names: Sequence[str]) -> Any:
    return rows.groupby([name for name in names if rows[name].notna().any()], dropna=False, sort=False)


def sum_up_rows(rows: Frame) -> Frame:
    """A line for rows that have much in common: how many they are, over which lengths, and their medians."""
    several = [_group(rows, names) for names in SUMMED_BY]
    groups = next((found for found in several if found.ngroups <= MOST_ROWS), several[-1])
    medians = groups[list(MEDIANS)].median()
    lengths = groups["seq_len"].agg(["min", "max"])
    summed = pd.DataFrame({"rows": groups.size(), "seq_len_min": lengths["min"], "seq_len_max": lengths["max"]})
    found = summed.join(medians.add_prefix("median_")).reset_index().head(MOST_ROWS)
    family = rows.drop_duplicates("variant").set_index("variant")["family"]
    return found if "family" in found or "variant" not in found else found.assign(family=found["variant"].map(family))


def _as_texts(values: Column) -> list[str]:
    floats = pd.api.types.is_float_dtype(values.dtype)
    said = ("" if v is pd.NA or v is None or v != v else f"{v:.5g}" if floats else str(v) for v in values.tolist())
    return list(said)


def list_environments(found: Iterable[tuple[str, dict[str, Any]]]) -> Table | None:
    """Where the runs were made: a line for everything that is known, a column for each environment that differs."""
    several: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run, environment in found:
        names = several.setdefault(tuple(_flatten(environment)), [])
        names += [] if run in names else [run]
    keys = dict.fromkeys(key for flat in several for key, _ in flat)
    if not keys:
        return None
    known = [dict(flat) for flat in several]
    body = [[Shown(key, key), *(Shown(d.get(key, units.NONE), d.get(key, "")) for d in known)] for key in keys]
    return Table("Environment", ("What", *(", ".join(names) for names in several.values())), body, text_columns=99)


def _flatten(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """Nested dicts as dotted names; sizes in units as well."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    elif value not in (None, "", [], ()):
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        text = text if len(text) <= LONGEST_FACT else f"{text[:LONGEST_FACT]}... (whole in run.json)"
        yield name, f"{units.size(value)} ({value})" if name.endswith("_bytes") and isinstance(value, int) else text


def describe_session(session: dict[str, Any]) -> dict[str, Any]:
    """How to make a run's rows again: its command and its suite, and when that was done."""
    return {
        "run": session["run"],
        "command": tell_command(session.get("command")),
        "suite_text": str(session.get("suite_text") or "").strip("\n"),
        "version": session.get("version"),
        "started": session.get("started"),
        "finished": session.get("finished"),
    }
