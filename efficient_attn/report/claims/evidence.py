"""From runs to what each claim's rows measured: rows are found, paired, and their errors taken from raw rounds."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ...results import frames, store
from ...results.compare import DRIFT
from ...results.differences import MOSTLY, minus, pair_with_baselines, relate, take_rounds
from ...results.exchange import name_cell, round_values
from ...results.rows import Record
from ...results.stats import Mean
from .ledger import Claim, Rule
from .measured import LONE, ROUNDS, Measured, fit_power, sum_up
from .query import Query, matches

TIMED = ("latency_ms", "speedup", "tokens_per_s", "tflops_per_s", "roofline_share", "bandwidth_share", "swap.step_ms")
# what two rows must share to be divided by each other, or to lie on one line
PLACE = ("run_id", "suite", "part", "task", "case", "device", "dtype", "threads", "batch", "heads", "head_dim")
PLACE += ("seq_len", "causal", "mode", "inputs", "layer", "cache", "fill", "compiled", "machine", "seed", "budget")
OWN = ("variant", "backend", "kv_heads")  # and what makes them one mechanism
OF_PLACE = {"seq_len": ("budget",), "mode": ("case",), "inputs": ("case",), "layer": ("case",)}  # go with another


@dataclass(frozen=True)
class Seen:
    """A row that a run holds. cells: its columns, tasks' included, and ``case``, the case key's word on the place.
    beside: the baseline that was timed beside it. started: its session's start, if known."""

    record: Record
    cells: Mapping[str, Any]
    beside: Record | None
    started: dt.datetime | None

    @property
    def disturbed(self) -> bool:
        """Whether its times are about something else, as `compare` sets cases aside."""
        row = self.record.row
        return (row.contaminated or 0) > MOSTLY * (row.rounds or 1)


class Evidence:
    """All rows that gave a result, in an order that does not depend on how they came."""

    def __init__(self, seen: Iterable[Seen]) -> None:
        self.seen = sorted(seen, key=lambda s: (str(s.record.row.run_id), s.record.row.case_key))

    @property
    def added(self) -> set[str]:
        """The columns of tasks that were seen."""
        return {column for s in self.seen for column in s.cells if "." in column}

    def find(self, query: Query, value: str) -> list[Seen]:
        return [s for s in self.seen if _is_number(s.cells.get(value)) and matches(s.cells, query)]


def read_evidence(runs: Sequence[Path]) -> Evidence:
    """Raises `UsageError` for a folder without a run, and for rows of a newer version."""
    found: list[Seen] = []
    for run in {store.rows_path(run).resolve(): run for run in runs}.values():
        records = frames.read_records(run)
        starts = {str(s.get("run_id")): _read_time(s.get("started")) for s in store.about(store.rows_path(run).parent)}
        entries = pair_with_baselines(records)
        beside = {id(entry.record): entry.baseline for entry in entries.values()}
        found += [see(r, beside.get(id(r)), starts.get(str(r.row.run_id))) for r in records if r.row.status == "ok"]
    return Evidence(found)


def see(record: Record, beside: Record | None = None, started: dt.datetime | None = None) -> Seen:
    row = record.row
    cells = {name: value for name, value in vars(row).items() if name != "extra"}
    cells |= {frames.name_column(row, name): value for name, value in row.extra.items()}
    return Seen(record, cells | {"case": ("/".join(row.case_key.split("/")[2:3]))}, beside, started)


def _read_time(text: Any) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# -- tests of one claim --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What there is for a claim. tests: by machine, of rows in its regime. elsewhere: rows outside of it."""

    tests: Mapping[str, Sequence[Measured]]
    rows: Mapping[str, Sequence[Seen]]
    elsewhere: int
    disturbed: int


def gather_tests(claim: Claim, evidence: Evidence) -> Found:
    """The claim's rows in its regime, paired or fitted as its rule says, a machine at a time."""
    rule = claim.rule
    asked = evidence.find(claim.rows, rule.value)
    inside = [s for s in asked if matches(s.cells, claim.regime)]
    timed = rule.value in TIMED
    calm = [s for s in inside if not (timed and s.disturbed)]
    others = evidence.find({**claim.rows, **rule.against}, rule.value) if rule.against else []
    others = [s for s in others if not (timed and s.disturbed)]
    partners = _index(others, rule) if others else {}
    rows: dict[str, list[Seen]] = defaultdict(list)
    found: dict[str, list[Measured]] = defaultdict(list)
    single: dict[str, list[tuple[Seen, Measured]]] = defaultdict(list)
    for s in calm:
        machine = str(s.record.row.machine or "unknown")
        beside = [
            o for o in partners.get(_place(s, rule), ()) if _may_divide(s, o, rule) and not (timed and o.disturbed)
        ]
        measured = [_divide(s, o, rule) for o in beside] if rule.against else [_measure(s, rule)]
        single[machine] += [(s, one) for one in measured]
        if measured:
            rows[machine] += [s, *beside]
    for machine, pairs in single.items():
        tests = list(_fit(pairs, rule)) if rule.over else [one for _, one in pairs]
        found[machine] = [sum_up(tests)] if rule.how == "typical" and tests else tests
    kept = {machine: tests for machine, tests in found.items() if tests}
    return Found(kept, {m: rows[m] for m in kept}, len(asked) - len(inside), len(inside) - len(calm))


def _index(rows: Iterable[Seen], rule: Rule) -> dict[tuple[Any, ...], list[Seen]]:
    found: dict[tuple[Any, ...], list[Seen]] = defaultdict(list)
    for s in rows:
        found[_place(s, rule)].append(s)
    return found


def _place(s: Seen, rule: Rule, also: Iterable[str] = ()) -> tuple[Any, ...]:
    """What a row shares with its partner: all but what ``against`` names, and what goes with that."""
    free = {*rule.against, *also}
    free |= set(OWN) if "variant" in free else set()
    free |= {column for name in free for column in OF_PLACE.get(name, ())}
    return tuple(s.cells.get(name) for name in (*PLACE, *OWN) if name not in free)


def _fit(pairs: Sequence[tuple[Seen, Measured]], rule: Rule) -> Iterator[Measured]:
    """A line for each series of two lengths or more."""
    assert rule.over is not None
    drift = DRIFT if rule.value in TIMED and rule.value != "speedup" else 0.0  # of times that were taken apart
    series: dict[tuple[Any, ...], list[tuple[float, Measured]]] = defaultdict(list)
    for s, measured in pairs:
        at = s.cells.get(rule.over)
        if _is_number(at) and at > 0 and measured.plain > 0:
            series[_place(s, rule, (rule.over, *rule.across))].append((float(at), measured))
    for points in series.values():
        if len({at for at, _ in points}) > 1:
            yield fit_power(*zip(*points, strict=True), drift=drift)


def _measure(s: Seen, rule: Rule) -> Measured:
    """One row's value, with the best that is known of its error."""
    value, cases = float(s.cells[rule.value]), (s.record.row.case_key,)
    if rule.value == "latency_ms" and round_values(s.record):
        return Measured.of_mean(take_rounds(s.record), cases, logs=True, basis=ROUNDS)
    if rule.value == "speedup" and s.beside is not None:
        mean = relate(s.record, s.beside)
        if mean.degrees:
            return Measured.of_mean(mean._replace(value=-mean.value), cases, logs=True, basis=ROUNDS)
    names = rule.interval or (f"{rule.value}_low", f"{rule.value}_high")
    task = s.record.row.task
    for low, high in (names, tuple(f"{task}.{name}" for name in names)):
        bottom, top = s.cells.get(low), s.cells.get(high)
        if _is_number(bottom) and _is_number(top):
            return Measured.of_interval(value, bottom, top, cases)
    if rule.value in TIMED:
        return Measured.of_mean(Mean(math.log(value), math.inf, 0), cases, logs=True, basis=LONE)
    return Measured.of_count(value, cases)


def _may_divide(s: Seen, other: Seen, rule: Rule) -> bool:
    """Whether two rows have a ratio: what is 0 or less has none."""
    return min(s.cells[rule.value], other.cells[rule.value]) > 0


def _divide(s: Seen, other: Seen, rule: Rule) -> Measured:
    """The ratio of two rows' values: round by round where they were timed side by side."""
    cases = s.record.row.case_key, other.record.row.case_key
    if rule.value == "latency_ms" and round_values(s.record) and round_values(other.record):
        if name_cell(s.record) == name_cell(other.record):
            mean = relate(s.record, other.record)
        else:
            mean = minus(take_rounds(s.record), take_rounds(other.record), drift=DRIFT)
        return Measured.of_mean(mean, cases, logs=True, basis=ROUNDS)
    top, bottom = _measure(s, rule), _measure(other, rule)
    return Measured.of_mean(minus(top.in_logs(), bottom.in_logs()), cases, logs=True, basis=top.basis)
