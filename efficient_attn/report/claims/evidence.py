"""Collect the measurements that test a claim: find and pair rows, and estimate errors from raw rounds."""

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

from ...results import frames, store
from ...results.compare import DRIFT
from ...results.differences import (
    MAX_DISTURBED_SHARE,
    estimate_log_ratio,
    estimate_mean_log,
    pair_with_baselines,
    subtract_means,
)
from ...results.exchange import keep_times, list_round_values, name_group
from ...results.rows import COLUMNS, Record
from ...results.stats import Mean
from .ledger import Claim, ClaimRule
from .measurement import BASIS_ROUNDS, BASIS_SINGLE, MAX_EXPONENT, Measurement, average_measurements, fit_power
from .row_query import LOSS_COLUMN, PERPLEXITY_COLUMN, Query, matches

TIME_COLUMNS = ("latency_ms", "speedup", "tokens_per_s", "tflops_per_s", "roofline_share", "bandwidth_share")
TIME_COLUMNS += ("swap.step_ms",)
# columns that two rows must share to form a ratio or a series
PAIRING_COLUMNS = ("run_id", "suite", "part", "task", "case", "device", "dtype", "threads", "batch", "heads")
PAIRING_COLUMNS += ("head_dim", "seq_len", "causal", "mode", "inputs", "layer", "cache", "fill", "compiled")
PAIRING_COLUMNS += ("machine", "seed", "budget", "train.share")
MECHANISM_COLUMNS = ("variant", "backend", "kv_heads")  # identify a mechanism
# columns that vary with the first ones; inputs name the conversion of an uptrained model
DEPENDENT_COLUMNS = {"seq_len": ("budget",), "mode": ("case",), "inputs": ("case",), "layer": ("case",)}
DEPENDENT_COLUMNS |= {"train.conversion": ("inputs", "case")}
# by which rows are looked up: columns of few values, with conditions in most claims
INDEX_COLUMNS = ("suite", "task", "mode", "variant", "device")


@dataclass(frozen=True)
class EvidenceRow:
    """A row of a run. values: its columns, those of tasks, and ``case``, the third part of the case key.
    baseline: the baseline timed together with it. started: the start of its session, if known. older_protocol: whether
    it was measured with an older protocol; such rows test no claim."""

    record: Record
    values: Mapping[str, Any]
    baseline: Record | None
    started: dt.datetime | None
    older_protocol: bool = False

    @property
    def disturbed(self) -> bool:
        """Whether its times were disturbed by other programs, by the criterion of `compare`."""
        row = self.record.row
        return (row.contaminated or 0) > MAX_DISTURBED_SHARE * (row.rounds or 1)


class Evidence:
    """All rows with a result, sorted independently of the order of runs."""

    def __init__(self, rows: Iterable[EvidenceRow]) -> None:
        self.rows = sorted(rows, key=lambda row: (str(row.record.row.run_id), row.record.row.case_key))

    @property
    def task_columns(self) -> set[str]:
        """The columns of tasks in these rows."""
        return {column for row in self.rows for column in row.values if "." in column}

    @cached_property
    def _index(self) -> dict[tuple[Any, ...], list[int]]:
        """Positions of rows by their values in `INDEX_COLUMNS`."""
        positions: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for position, row in enumerate(self.rows):
            positions[tuple(row.values.get(column) for column in INDEX_COLUMNS)].append(position)
        return positions

    def find(self, query: Query, value: str, *, older_protocol: bool = False) -> list[EvidenceRow]:
        """The rows of the present, or of older protocols, that match a query and have a number in this column."""
        indexed = {column: condition for column, condition in query.items() if column in INDEX_COLUMNS}
        others = {column: condition for column, condition in query.items() if column not in INDEX_COLUMNS}
        groups = (x for key, x in self._index.items() if matches(dict(zip(INDEX_COLUMNS, key, strict=True)), indexed))
        rows = (self.rows[position] for position in sorted(chain.from_iterable(groups)))
        present = (row for row in rows if row.older_protocol is older_protocol and _is_number(row.values.get(value)))
        return [row for row in present if matches(row.values, others)]


def read_evidence(runs: Sequence[Path]) -> Evidence:
    """Read all runs. Raises `UsageError` for a folder without a run, and for rows of a newer version."""
    rows: list[EvidenceRow] = []
    for run in {store.find_rows_path(run).resolve(): run for run in runs}.values():
        sessions = {str(s.get("run_id")): s for s in store.read_sessions(store.find_rows_path(run).parent)}
        rows += [
            make_evidence_row(
                entry.record, entry.baseline and entry.baseline.record, sessions.get(str(entry.record.row.run_id), {})
            )
            for entry in pair_with_baselines(frames.read_records(run, keep_samples=keep_times)).values()
            if entry.ok
        ]
    return Evidence(rows)


def make_evidence_row(record: Record, baseline: Record | None, session: Mapping[str, Any]) -> EvidenceRow:
    """A row for claims, with its baseline, and the date and protocol of its session."""
    row = record.row
    values = {name: getattr(row, name) for name in COLUMNS if name != "extra"}
    values |= {frames.name_column(row, name): value for name, value in row.extra.items()}
    values["case"] = "".join(row.case_key.split("/")[2:3])
    loss = values.get(LOSS_COLUMN)
    if _is_number(loss) and row.metric == "nats a token":
        values[PERPLEXITY_COLUMN] = math.exp(min(loss, MAX_EXPONENT))
    started, older_protocol = _read_time(session.get("started")), store.is_older_protocol(session)
    return EvidenceRow(record, values, baseline, started, older_protocol)


def _read_time(text: Any) -> dt.datetime | None:
    try:
        time = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo else time.replace(tzinfo=dt.UTC)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class ClaimTests:
    """The tests of a claim by machine, and their rows. out_of_regime, disturbed, older_protocol: numbers of rows left
    out."""

    tests: Mapping[str, Sequence[Measurement]]
    rows: Sequence[EvidenceRow]
    out_of_regime: int
    disturbed: int
    older_protocol: int


def gather_tests(claim: Claim, evidence: Evidence) -> ClaimTests:
    """Pair or fit the claim's rows in its regime according to its rule, per machine."""
    rule, timed = claim.rule, claim.rule.value in TIME_COLUMNS
    matching = evidence.find(claim.rows, rule.value)
    in_regime = [row for row in matching if matches(row.values, claim.regime)]
    undisturbed = [row for row in in_regime if not (timed and row.disturbed)]
    partners: dict[tuple[Any, ...], list[EvidenceRow]] = defaultdict(list)
    for partner in evidence.find({**claim.rows, **rule.against}, rule.value) if rule.against else ():
        if partner.values[rule.value] > 0 and not (timed and partner.disturbed):
            partners[_make_pairing_key(partner, rule)].append(partner)
    pairs: dict[str, list[tuple[EvidenceRow, Measurement]]] = defaultdict(list)
    rows: dict[str, list[EvidenceRow]] = defaultdict(list)
    for row in undisturbed:
        has_ratio = rule.against and row.values[rule.value] > 0
        paired_rows = partners.get(_make_pairing_key(row, rule), []) if has_ratio else []
        ratios = [_compute_ratio(row, partner, rule) for partner in paired_rows]
        if ratios or not rule.against:
            machine = str(row.record.row.machine or "unknown")
            pairs[machine] += [(row, measurement) for measurement in ratios or [_measure(row, rule)]]
            rows[machine] += [row, *paired_rows]
    tests: dict[str, list[Measurement]] = {}
    for machine, measured in pairs.items():
        machine_tests = list(_fit_series(measured, rule)) if rule.over else [measurement for _, measurement in measured]
        if machine_tests:
            tests[machine] = [average_measurements(machine_tests)] if rule.how == "typical" else machine_tests
    older = evidence.find(claim.rows, rule.value, older_protocol=True)
    return ClaimTests(
        tests=tests,
        rows=[row for machine in tests for row in rows[machine]],
        out_of_regime=len(matching) - len(in_regime),
        disturbed=len(in_regime) - len(undisturbed),
        older_protocol=sum(matches(row.values, claim.regime) for row in older),
    )


def _make_pairing_key(row: EvidenceRow, rule: ClaimRule, extra_columns: Iterable[str] = ()) -> tuple[Any, ...]:
    """Values that a row shares with its partner: all columns but those of ``against`` and their dependents."""
    free_columns = {*rule.against, *extra_columns}
    free_columns |= set(MECHANISM_COLUMNS) if "variant" in free_columns else set()
    free_columns |= {column for name in free_columns for column in DEPENDENT_COLUMNS.get(name, ())}
    return tuple(row.values.get(name) for name in (*PAIRING_COLUMNS, *MECHANISM_COLUMNS) if name not in free_columns)


def _fit_series(pairs: Sequence[tuple[EvidenceRow, Measurement]], rule: ClaimRule) -> Iterator[Measurement]:
    """Fit a line to each series of at least two lengths."""
    assert rule.over is not None
    drift = DRIFT if rule.value in TIME_COLUMNS and rule.value != "speedup" else 0.0  # between groups
    series: dict[tuple[Any, ...], list[tuple[float, Measurement]]] = defaultdict(list)
    for row, measured in pairs:
        x = row.values.get(rule.over)
        if _is_number(x) and x > 0 and measured.plain > 0:
            series[_make_pairing_key(row, rule, (rule.over, *rule.across))].append((float(x), measured))
    for points in series.values():
        if len({x for x, _ in points}) > 1:
            yield fit_power(*zip(*points, strict=True), drift=drift)


def _measure(row: EvidenceRow, rule: ClaimRule) -> Measurement:
    """Return one row's value with the best available error estimate."""
    value, case_keys = float(row.values[rule.value]), (row.record.row.case_key,)
    if rule.value == "latency_ms" and list_round_values(row.record):
        return Measurement.of_mean(estimate_mean_log(row.record), case_keys, log_scale=True, basis=BASIS_ROUNDS)
    if rule.value == "speedup" and row.baseline is not None:
        mean = estimate_log_ratio(row.record, row.baseline)
        if mean.degrees:
            return Measurement.of_mean(mean._replace(value=-mean.value), case_keys, log_scale=True, basis=BASIS_ROUNDS)
    low_name, high_name = rule.interval or (f"{rule.value}_low", f"{rule.value}_high")
    for prefix in ("", f"{row.record.row.task}."):
        low, high = row.values.get(f"{prefix}{low_name}"), row.values.get(f"{prefix}{high_name}")
        if _is_number(low) and _is_number(high):
            return Measurement.of_interval(value, low, high, case_keys)
    if rule.value in TIME_COLUMNS:
        return Measurement.of_mean(Mean(math.log(value), math.inf, 0), case_keys, log_scale=True, basis=BASIS_SINGLE)
    return Measurement.of_count(value, case_keys)


def _compute_ratio(row: EvidenceRow, other: EvidenceRow, rule: ClaimRule) -> Measurement:
    """The ratio of two rows' values, which are positive; paired by round if they were timed in the same group."""
    case_keys = row.record.row.case_key, other.record.row.case_key
    if rule.value == "latency_ms" and list_round_values(row.record) and list_round_values(other.record):
        if name_group(row.record) == name_group(other.record):
            mean = estimate_log_ratio(row.record, other.record)
        else:
            mean = subtract_means(estimate_mean_log(row.record), estimate_mean_log(other.record), drift=DRIFT)
        return Measurement.of_mean(mean, case_keys, log_scale=True, basis=BASIS_ROUNDS)
    measured, partner = _measure(row, rule), _measure(other, rule)
    mean = subtract_means(measured.to_log_mean(), partner.to_log_mean())
    return Measurement.of_mean(mean, case_keys, log_scale=True, basis=measured.basis)
