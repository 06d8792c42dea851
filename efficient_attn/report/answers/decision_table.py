"""Decision tables: per mechanism its crossover length, speedups, approximation error, and memory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import units
from ...results.stats import Estimate
from .. import approximation_errors, select
from ..gather import Frame
from .crossovers import Crossover, find_crossover, split_curves

USUAL_LENGTHS = (1024, 8192)  # commonly used lengths; each is represented by the nearest measured one
MAX_LENGTH_FACTOR = 2.0  # largest factor between a usual length and the one that represents it


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One mechanism at one configuration.

    speedups: by length. crossover: None if no speedup has an interval. error: relative, None if unknown, 0 for exact
    attention; error_text: its description; error_on: the conditions of its measurement; error_interval: over layers;
    null_error: the error of predicting the mean of v. memory_ratio: peak memory over the baseline's at
    ``memory_length``, the longest length at which both were measured. state_bytes: size of the decoding state after
    ``state_length`` positions, None if measured at other shapes only; state_share: the same over the baseline's.
    """

    label: str
    variant: str
    family: str | None
    crossover: Crossover | None
    speedups: Mapping[int, Estimate]
    error_text: str
    error: float | None
    error_on: str | None = None
    error_interval: tuple[float, float] | None = None
    null_error: float | None = None
    memory_ratio: float | None = None
    memory_length: int | None = None
    state_bytes: int | None = None
    state_share: float | None = None
    state_length: int | None = None

    @property
    def longest_speedup(self) -> tuple[int, Estimate] | None:
        """The longest length with a speedup, and the speedup; None if there is none."""
        return max(self.speedups.items()) if self.speedups else None


@dataclass(frozen=True, kw_only=True)
class DecisionTable:
    """The decisions of one configuration. config: a setting's columns with ``mode`` and ``causal``.

    lengths: the measured lengths nearest to the usual ones, and the longest. decisions: sorted by speedup at the
    longest of these lengths, fastest first.
    """

    config: Mapping[str, Any]
    baseline: str
    lengths: tuple[int, ...]
    decisions: tuple[Decision, ...]
    run_ids: frozenset[str] = frozenset()


def make_decision_tables(rows: Frame) -> list[DecisionTable]:
    """Return a table for each configuration timed together with a baseline, in the order of rows.

    rows: with labels and errors (`select.add_labels`, `approximation_errors.add_errors`).
    """
    states = _list_states(rows)
    tables = []
    for config, baseline, curve_rows in split_curves(rows):
        is_baseline = curve_rows["is_baseline"].to_numpy(dtype=bool)
        baseline_memory = _list_peak_memory(
            {name: curve_rows[name].to_numpy()[is_baseline] for name in ("seq_len", "peak_memory_bytes")}
        )
        mechanism_rows = curve_rows[~is_baseline]
        # one row per label, for the columns that its rows share
        first_rows = {row["label"]: row for row in mechanism_rows[_SHARED_COLUMNS].iloc[::-1].to_dict("records")}
        decisions = [
            _make_decision(first_rows[label], columns, baseline_memory, states)
            for label, columns in select.split_variants(mechanism_rows).items()
        ]
        decisions = [decision for decision in decisions if decision.speedups]
        if decisions:
            lengths = choose_lengths({n for decision in decisions for n in decision.speedups})
            table = DecisionTable(
                config=config,
                baseline=baseline,
                lengths=lengths,
                decisions=_sort_decisions(decisions, lengths[-1]),
                run_ids=frozenset(map(str, curve_rows["run_id"].dropna().unique())),
            )
            tables.append(table)
    return tables


def choose_lengths(measured: Iterable[int]) -> tuple[int, ...]:
    """Return the lengths that represent the usual ones, and the longest, in ascending order."""
    lengths = sorted(measured)
    nearest = [min(lengths, key=lambda n: abs(math.log(n / target))) for target in USUAL_LENGTHS]
    close_lengths = [
        n
        for n, target in zip(nearest, USUAL_LENGTHS, strict=True)
        if 1 / MAX_LENGTH_FACTOR <= n / target <= MAX_LENGTH_FACTOR
    ]
    return tuple(sorted({*close_lengths, lengths[-1]}))


def _sort_decisions(decisions: Sequence[Decision], longest: int) -> tuple[Decision, ...]:
    """Sort by speedup at the longest length; those not measured there follow, by their longest length."""

    def sort_key(decision: Decision) -> tuple[float, float, str]:
        length, speedup = decision.longest_speedup or (0, Estimate(0.0))
        return -min(length, longest), -speedup.value, decision.label

    return tuple(sorted(decisions, key=sort_key))


def _make_decision(
    row: Mapping[str, Any],
    columns: select.ColumnArrays,
    baseline_memory: Mapping[int, float],
    states: Mapping[str, Sequence[_StateSize]],
) -> Decision:
    memory_ratios = {
        n: used / baseline_memory[n] for n, used in _list_peak_memory(columns).items() if baseline_memory.get(n)
    }
    longest = max(memory_ratios, default=None)
    state_bytes, state_share, state_length = _find_state(row, states)
    unknown_error = 0.0 if approximation_errors.is_exact(row) else None
    return Decision(
        label=str(row["label"]),
        variant=str(row["variant"]),
        family=row["family"],
        crossover=find_crossover(columns),
        speedups=_read_speedups(columns),
        error_text=approximation_errors.describe_error(row),
        error=float(row["error"]) if units.is_present(row["error"]) else unknown_error,
        error_on=approximation_errors.describe_conditions(row) if units.is_present(row["error_on"]) else None,
        error_interval=(row["error_low"], row["error_high"]) if units.is_present(row["error_low"]) else None,
        null_error=row["error_of_mean"] if units.is_present(row["error_of_mean"]) else None,
        memory_ratio=memory_ratios.get(longest) if longest is not None else None,
        memory_length=longest,
        state_bytes=state_bytes,
        state_share=state_share,
        state_length=state_length,
    )


def _read_speedups(columns: select.ColumnArrays) -> dict[int, Estimate]:
    """Speedups by length, with intervals where these were measured."""
    ordered = select.sort_series(columns, "speedup", "speedup_low", "speedup_high")
    return {
        int(length): Estimate(value, low, high) if low > 0 and high > 0 else Estimate(value)
        for length, value, low, high in zip(*ordered, strict=True)
    }


def _list_peak_memory(columns: select.ColumnArrays) -> dict[int, float]:
    """Peak memory in bytes, by length."""
    pairs = zip(columns["seq_len"].tolist(), columns["peak_memory_bytes"].tolist(), strict=True)
    return {int(n): float(value) for n, value in pairs if units.is_present(value) and units.is_present(n)}


# -- decoding states -----------------------------------------------------------------------------------------------

_STATE_COLUMNS = ("dtype", "batch", "heads", "head_dim", "kv_heads")  # determine the bytes of a state
_SHARED_COLUMNS = ["label", "variant", "family", *approximation_errors.ERROR_COLUMNS, *_STATE_COLUMNS]


@dataclass(frozen=True)
class _StateSize:
    """Size of a variant's state after a context, in bytes and over the baseline's."""

    shape: tuple[Any, ...]
    context: int
    bytes: int
    share: float | None


def _find_state(
    row: Mapping[str, Any], states: Mapping[str, Sequence[_StateSize]]
) -> tuple[int | None, float | None, int | None]:
    """Bytes, share and length of the state after the longest context, preferably at the row's own shape; at other
    shapes without the bytes."""
    shape = _read_shape(row)
    best = max(states.get(row["label"], ()), key=lambda state: (state.shape == shape, state.context), default=None)
    if best is None or (best.share is None and best.shape != shape):
        return None, None, None
    return best.bytes if best.shape == shape else None, best.share, best.context


def _read_shape(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] if units.is_present(row[name]) else None for name in _STATE_COLUMNS)


def _list_states(rows: Frame) -> Mapping[str, Sequence[_StateSize]]:
    """All measured states, by label."""
    decode_rows = rows[(rows["status"] == "ok") & (rows["mode"] == "decode") & (rows["state_bytes"] > 0)]
    decode_rows = decode_rows[decode_rows["seq_len"].notna()]
    columns = ["label", "is_baseline", "seq_len", "state_bytes", "machine", *_STATE_COLUMNS]
    records: list[dict[str, Any]] = decode_rows[columns].to_dict("records")
    # without key-value heads, whose number may differ in the baseline
    baseline_bytes = {
        (row["machine"], *_read_shape(row)[:-1], row["seq_len"]): row["state_bytes"]
        for row in records
        if row["is_baseline"]
    }
    states: dict[str, list[_StateSize]] = defaultdict(list)
    for row in records:
        shape, size = _read_shape(row), row["state_bytes"]
        base = baseline_bytes.get((row["machine"], *shape[:-1], row["seq_len"]))
        states[row["label"]].append(_StateSize(shape, int(row["seq_len"]), int(size), size / base if base else None))
    return states
