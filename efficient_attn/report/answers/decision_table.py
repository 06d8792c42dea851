"""Decision tables: per mechanism its crossover length, speedups, approximation error, and memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import units
from ...results.stats import Estimate
from .. import approximation_errors, select
from ..gather import Frame
from .crossovers import Crossover, find_crossover

USUAL_LENGTHS = (1024, 8192)  # commonly used lengths; each is represented by the nearest measured one
MAX_LENGTH_FACTOR = 2.0  # largest factor between a usual length and the one that represents it


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One mechanism at one configuration.

    speedups: by length. crossover: None if no speedup has an interval. error: relative, with its interval over layers;
    None if unknown, 0 for exact attention; error_text: its description; error_on: the conditions of its measurement;
    null_error: the error of predicting the mean of v. memory_ratio: peak memory over the baseline's at
    ``memory_length``, the longest length at which both were measured. state_bytes: size of the decoding state after
    ``state_length`` positions, None if measured at other shapes only; state_share: the same over the baseline's.
    """

    label: str
    variant: str
    crossover: Crossover | None
    speedups: Mapping[int, Estimate]
    error_text: str
    error: Estimate | None
    error_on: str | None = None
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


@dataclass(frozen=True)
class DecisionTable:
    """The decisions of one configuration. config: a setting's columns with ``mode`` and ``causal``.

    lengths: the measured lengths nearest to the usual ones, and the longest. decisions: sorted by speedup at the
    longest of these lengths, fastest first; those not measured there follow, by their longest length.
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
    return [table for *_, table in split_tables(rows) if table]


def split_tables(rows: Frame) -> Iterator[tuple[dict[str, Any], str, Frame, DecisionTable | None]]:
    """Split timed rows by configuration; yield each with its baseline's name, its rows, and its table, if any."""
    states = _list_states(rows)
    for setting in select.split_settings(select.filter_timed(select.filter_task(rows, "speed"))):
        for piece in setting.slices:
            config = setting.key | {"mode": piece.mode, "causal": piece.causal}
            yield config, setting.baseline, piece.rows, _make_table(config, setting.baseline, piece.rows, states)


def _make_table(
    config: Mapping[str, Any], baseline: str, rows: Frame, states: Mapping[str, Sequence[Mapping[str, Any]]]
) -> DecisionTable | None:
    is_baseline = rows["is_baseline"].to_numpy(dtype=bool)
    baseline_memory, mechanism_rows = _list_peak_memory(rows[is_baseline]), rows[~is_baseline]
    # one row per label, for the columns that its rows share
    first_rows = mechanism_rows[_SHARED_COLUMNS].drop_duplicates("label").to_dict("records")
    columns_by_label = select.split_variants(mechanism_rows)
    decisions = [_make_decision(row, columns_by_label[row["label"]], baseline_memory, states) for row in first_rows]
    decisions = [decision for decision in decisions if decision.speedups]
    if not decisions:
        return None
    lengths = choose_lengths({n for decision in decisions for n in decision.speedups})

    def sort_key(decision: Decision) -> tuple[float, float, str]:
        length, speedup = decision.longest_speedup or (0, Estimate(0.0))
        return -min(length, lengths[-1]), -speedup.value, decision.label

    run_ids = frozenset(map(str, rows["run_id"].dropna().unique()))
    return DecisionTable(config, baseline, lengths, tuple(sorted(decisions, key=sort_key)), run_ids)


def choose_lengths(measured: Iterable[int]) -> tuple[int, ...]:
    """Return the lengths that represent the usual ones, and the longest, in ascending order."""
    lengths = sorted(measured)
    nearest = [(target, min(lengths, key=lambda n: abs(math.log(n / target)))) for target in USUAL_LENGTHS]
    close = [n for target, n in nearest if 1 / MAX_LENGTH_FACTOR <= n / target <= MAX_LENGTH_FACTOR]
    return tuple(sorted({*close, lengths[-1]}))


def _make_decision(
    row: Mapping[str, Any],
    columns: select.ColumnArrays,
    baseline_memory: Mapping[int, float],
    states: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Decision:
    memory = _list_peak_memory(columns)
    memory_ratios = {n: used / baseline_memory[n] for n, used in memory.items() if baseline_memory.get(n)}
    longest = max(memory_ratios, default=None)
    state_bytes, state_share, state_length = _find_state(row, states)
    cells = {name: row[name] if units.is_present(row[name]) else None for name in approximation_errors.ERROR_COLUMNS}
    error = Estimate(0.0) if approximation_errors.is_exact(row) else None
    if cells["error"] is not None:
        error = Estimate(float(cells["error"]), cells["error_low"], cells["error_high"])
    return Decision(
        label=str(row["label"]),
        variant=str(row["variant"]),
        crossover=find_crossover(columns),
        speedups=_read_speedups(columns),
        error_text=approximation_errors.describe_error(row),
        error=error,
        error_on=approximation_errors.describe_conditions(row) if cells["error_on"] is not None else None,
        null_error=cells["error_of_mean"],
        memory_ratio=None if longest is None else memory_ratios[longest],
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

_STATE_COLUMNS = ["dtype", "batch", "heads", "head_dim", "kv_heads"]  # determine the bytes of a state
_SHARED_COLUMNS = ["label", "variant", *approximation_errors.ERROR_COLUMNS, *_STATE_COLUMNS]


def _list_states(rows: Frame) -> dict[str, list[dict[str, Any]]]:
    """The rows with a decoding state by label, with its size over the baseline's as ``share``."""
    rows = rows[(rows["status"] == "ok") & (rows["mode"] == "decode") & (rows["state_bytes"] > 0)]
    rows = rows.loc[
        rows["seq_len"].notna(), ["label", "is_baseline", "machine", "seq_len", "state_bytes", *_STATE_COLUMNS]
    ]
    # without key-value heads, whose number may differ in the baseline
    key_columns = ["machine", "seq_len", *_STATE_COLUMNS[:-1]]
    baselines = rows.loc[rows["is_baseline"].astype(bool), [*key_columns, "state_bytes"]]
    baselines = baselines.drop_duplicates(key_columns, keep="last")
    rows = rows.merge(baselines, how="left", on=key_columns, suffixes=("", "_of_baseline"))
    rows = rows.assign(share=rows["state_bytes"] / rows["state_bytes_of_baseline"])
    return {label: part.to_dict("records") for label, part in rows.groupby("label")}


def _find_state(
    row: Mapping[str, Any], states: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[int | None, float | None, int | None]:
    """Bytes, share and length of the state after the longest context, preferably at the row's own shape; at other
    shapes without the bytes."""

    def has_shape(state: Mapping[str, Any]) -> bool:
        pairs = ((state[name], row[name]) for name in _STATE_COLUMNS)
        return all(a == b or not (units.is_present(a) or units.is_present(b)) for a, b in pairs)

    state = max(states.get(row["label"], ()), key=lambda x: (has_shape(x), x["seq_len"]), default=None)
    if state is None or not (has_shape(state) or units.is_present(state["share"])):
        return None, None, None
    share = state["share"] if units.is_present(state["share"]) else None
    return int(state["state_bytes"]) if has_shape(state) else None, share, int(state["seq_len"])
