"""End of a report: cases without a result, all rows, and environments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ... import units
from .. import formatting, select
from ..command_line import format_command
from ..gather import Frame, FrameColumn
from ..tables import ReportCell, ReportTable
from .trained_scores import drop_needless_rows


def list_missing(rows: Frame, cpus: dict[str, str]) -> ReportTable | None:
    """Cases without a result, with reasons; cases that differ in length or variant only share a row."""
    rows = drop_needless_rows(rows)
    missing = rows[rows["status"] != "ok"]
    if missing.empty:
        return None
    varying_columns = [
        name for name in select.SETTING_COLUMNS if name == "device" or rows[name].nunique(dropna=False) > 1
    ]
    common = {name: rows[name].iloc[0] for name in select.SETTING_COLUMNS if name not in varying_columns}
    common_setting = formatting.format_setting(common, cpus)
    body = []
    for shared, lengths, names in _group_missing(missing):
        setting_text = formatting.format_setting({name: shared[name] for name in varying_columns}, cpus)
        body.append(_format_missing(shared, lengths, names, setting_text))
    caption = f"{formatting.format_count(len(missing), 'case')} of {len(rows)} did not give a result"
    head = ("Status", "Variants", "What", "Lengths", "Cases", "Where", "Reason")
    note = f"All of them: {common_setting}." if common_setting else ""
    return ReportTable(caption, head, body, text_columns=7, note=note)


def _group_missing(missing: Frame) -> Iterator[tuple[dict[str, Any], tuple[int, ...], dict[str, int]]]:
    """Group failed rows: yield their common values, lengths, and number of cases per variant."""
    shared_columns = [*select.SETTING_COLUMNS, "task", "mode", "causal", "inputs", "layer", "status", "reason"]
    lengths_by_case: dict[tuple[Any, ...], list[Any]] = {}
    columns = (missing[name].tolist() for name in (*shared_columns, "label", "seq_len"))
    for *values, length in zip(*columns, strict=True):
        values_key = tuple(value if units.is_present(value) else None for value in values)
        lengths_by_case.setdefault(values_key, []).append(length)
    groups: dict[tuple[Any, ...], dict[str, int]] = {}
    for (*values, label), case_lengths in lengths_by_case.items():
        lengths = tuple(sorted({int(length) for length in case_lengths if units.is_present(length)}))
        groups.setdefault((*values, lengths), {})[label] = len(case_lengths)
    for (*values, lengths), names in groups.items():
        yield dict(zip(shared_columns, values, strict=True)), lengths, names


def _format_missing(
    shared: dict[str, Any], lengths: tuple[int, ...], names: dict[str, int], setting_text: str
) -> list[ReportCell]:
    task = shared["task"] if shared["mode"] in (None, "train") else None
    layer = None if shared["layer"] is None else f"layer {int(shared['layer'])}"
    parts = (task, formatting.format_slice(shared["mode"], shared["causal"]), shared["inputs"], layer)
    description, lengths_text = ", ".join(filter(None, parts)), ", ".join(map(str, lengths))
    texts = [shared["status"], ", ".join(names), description or units.EMPTY, lengths_text or units.EMPTY]
    cases, reason = sum(names.values()), shared["reason"] or "no reason was given"
    return [*map(ReportCell, texts), ReportCell(str(cases), cases), ReportCell(setting_text), ReportCell(reason)]


MOST_ROWS = 2000  # of a page; more are aggregated
MEDIAN_COLUMNS = ("speedup", "relative_error", "accuracy")  # comparable across sizes
MAX_FACT_LETTERS = 300  # per line of the environment; torch's build settings have thousands

# listed even if constant; the case's key, long and unique, is in the CSV file only
ALWAYS_LISTED = (
    *("variant", "status", "reason", "mode", "seq_len", "latency_ms"),
    *("pairs", "pairs_computed", "stop_reason", "backend_used"),
)


@dataclass(frozen=True)
class RowListing:
    """All rows as text: names and cells of varying columns, and constant columns with their values.

    count: number of rows. aggregated: whether each line stands for several rows, because they are too many.
    """

    names: list[str]
    cells: list[list[str]]
    constants: list[tuple[str, str]]
    count: int
    aggregated: bool = False


def list_rows(rows: Frame) -> RowListing:
    """List the rows, aggregated if there are too many for a page."""
    count = len(rows)
    if count > MOST_ROWS:
        rows = aggregate_rows(rows)
    listed = [name for name in rows.columns if name != "case_key" and rows[name].notna().any()]
    varying = [x for x in listed if x in ALWAYS_LISTED or len(rows) < 2 or rows[x].nunique(dropna=False) != 1]
    constant = [name for name in listed if name not in varying]
    cells = [list(row) for row in zip(*(_format_values(rows[name]) for name in varying), strict=True)]
    constants = [(name, _format_values(rows[name].head(1))[0]) for name in constant]
    return RowListing(varying, cells, constants, count, count > MOST_ROWS)


# columns by which rows are aggregated: the first with few enough groups, else the last
AGGREGATION_KEYS = (
    ("variant", "task", "mode", "causal", "device", "dtype", "status"),
    ("variant", "task", "mode", "device", "status"),
    ("variant", "status"),
)


def aggregate_rows(rows: Frame) -> Frame:
    """Aggregate rows: number of rows, range of lengths, and medians."""
    keys = ([name for name in names if rows[name].notna().any()] for names in AGGREGATION_KEYS)
    groupings = [rows.groupby(names, dropna=False, sort=False) for names in keys]
    groups = next((table for table in groupings if table.ngroups <= MOST_ROWS), groupings[-1])
    medians = groups[list(MEDIAN_COLUMNS)].median()
    lengths = groups["seq_len"].agg(["min", "max"])
    aggregated = pd.DataFrame({"rows": groups.size(), "seq_len_min": lengths["min"], "seq_len_max": lengths["max"]})
    table = aggregated.join(medians.add_prefix("median_")).reset_index().head(MOST_ROWS)
    family = rows.drop_duplicates("variant").set_index("variant")["family"]
    return table.assign(family=table["variant"].map(family))


def _format_values(values: FrameColumn) -> list[str]:
    floats = pd.api.types.is_float_dtype(values.dtype)
    texts = ("" if v is pd.NA or v is None or v != v else f"{v:.5g}" if floats else str(v) for v in values.tolist())
    return list(texts)


def list_environments(environments: Iterable[tuple[str, dict[str, Any]]]) -> ReportTable | None:
    """Environments of the runs: a row per property, a column per distinct environment."""
    runs_by_environment: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run, environment in environments:
        names = runs_by_environment.setdefault(tuple(_flatten(environment)), [])
        names += [] if run in names else [run]
    keys = dict.fromkeys(key for flat in runs_by_environment for key, _ in flat)
    if not keys:
        return None
    facts_by_environment = [dict(flat) for flat in runs_by_environment]
    body = [[ReportCell(key), *(ReportCell(d.get(key, units.EMPTY)) for d in facts_by_environment)] for key in keys]
    head = ("What", *map(", ".join, runs_by_environment.values()))
    return ReportTable("Environment", head, body, text_columns=99)


def _flatten(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """Flatten nested dicts to dotted names; sizes are formatted with units as well."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    elif value not in (None, "", [], ()):
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        text = text if len(text) <= MAX_FACT_LETTERS else f"{text[:MAX_FACT_LETTERS]}... (whole in run.json)"
        yield name, f"{units.size(value)} ({value})" if name.endswith("_bytes") and isinstance(value, int) else text


def describe_session(session: dict[str, Any]) -> dict[str, Any]:
    """How to reproduce a session: command, suite, version and times."""
    facts = {name: session.get(name) for name in ("run", "version", "started", "finished")}
    suite_text = str(session.get("suite_text") or "").strip("\n")
    return facts | {"command": format_command(session.get("command")), "suite_text": suite_text}
