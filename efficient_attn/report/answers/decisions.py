"""What to use, a line a mechanism: from where on it is faster, how much, what it loses, what it holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import units
from ...results.stats import Estimate
from .. import losses, select
from ..gather import Frame
from .crossovers import Passing, find_passing, split_curves

ASKED = (1024, 8192)  # lengths that everybody asks for; the nearest measured one stands for each
NEAR = 2.0  # a factor between a length asked for and one that may stand for it


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One mechanism at one place.

    speedups: by length. passing: None where no speedup has an interval. loss: in words; error: None where unknown, 0
    for exact attention; error_on: on what it was measured; error_ends: its interval over layers; null: the error of
    predicting the mean of v there. memory: peak memory over the baseline's, at ``memory_at``, the longest length at
    which both were measured. state: bytes that decoding keeps after ``state_at`` positions, None where that was
    measured at other shapes only; state_share: of the baseline's there.
    """

    label: str
    variant: str
    family: str | None
    passing: Passing | None
    speedups: Mapping[int, Estimate]
    loss: str
    error: float | None
    error_on: str | None = None
    error_ends: tuple[float, float] | None = None
    null: float | None = None
    memory: float | None = None
    memory_at: int | None = None
    state: int | None = None
    state_share: float | None = None
    state_at: int | None = None

    @property
    def last(self) -> tuple[int, Estimate] | None:
        """The longest length with a speedup, and that; None where none was measured."""
        return max(self.speedups.items()) if self.speedups else None


@dataclass(frozen=True, kw_only=True)
class Board:
    """The decisions of one place: a setting's columns with ``mode`` and ``causal``.

    lengths: those measured nearest to what everybody asks for, then the longest. decisions: those with the greatest
    speedup at the longest length that most were measured at come first.
    """

    place: Mapping[str, Any]
    baseline: str
    lengths: tuple[int, ...]
    decisions: tuple[Decision, ...]
    run_ids: frozenset[str] = frozenset()


def make_decisions(rows: Frame) -> list[Board]:
    """A board for every place at which something was timed beside its baseline, in the rows' order.

    rows: with labels and losses (`select.add_labels`, `losses.add_losses`).
    """
    states = _list_states(rows)
    boards = []
    for place, baseline, own in split_curves(rows):
        base = own["is_baseline"].to_numpy(dtype=bool)
        held = _list_values({name: own[name].to_numpy()[base] for name in ("seq_len", "peak_memory_bytes")})
        others = own[~base]
        first = _list_first(others)
        found = [_decide(first[label], own, held, states) for label, own in select.split_variants(others).items()]
        found = [decision for decision in found if decision.speedups]
        if found:
            lengths = choose_lengths({n for decision in found for n in decision.speedups})
            ids = frozenset(map(str, own["run_id"].dropna().unique()))
            boards.append(
                Board(
                    place=place, baseline=baseline, lengths=lengths, decisions=_order(found, lengths[-1]), run_ids=ids
                )
            )
    return boards


def choose_lengths(measured: Iterable[int]) -> tuple[int, ...]:
    """Of these lengths those that stand for the ones asked for, and the longest; in order, each once."""
    known = sorted(measured)
    near = [min(known, key=lambda n: abs(math.log(n / asked))) for asked in ASKED]
    kept = [n for n, asked in zip(near, ASKED, strict=True) if 1 / NEAR <= n / asked <= NEAR]
    return tuple(sorted({*kept, known[-1]}))


def _order(found: Sequence[Decision], longest: int) -> tuple[Decision, ...]:
    """The fastest at the longest length first; then those that were not measured there, as far as they went."""

    def place(decision: Decision) -> tuple[float, float, str]:
        length, speedup = decision.last or (0, Estimate(0.0))
        return -min(length, longest), -speedup.value, decision.label

    return tuple(sorted(found, key=place))


def _list_first(rows: Frame) -> dict[str, dict[str, Any]]:
    """Of each variant one row, for what all its rows share; by columns, for thousands of small frames cost seconds."""
    names = ["label", "variant", "family", *losses.COLUMNS, *_SHAPE]
    lines = zip(*(rows[name].tolist() for name in names), strict=True)
    return {line[0]: dict(zip(names, line, strict=True)) for line in reversed(list(lines))}


def _decide(
    one: Mapping[str, Any], own: select.Columns, held: Mapping[int, float], states: Mapping[str, Sequence[_State]]
) -> Decision:
    memory = {n: used / held[n] for n, used in _list_values(own).items() if held.get(n)}
    longest = max(memory, default=None)
    kept, share, at = _find_state(one, states)
    return Decision(
        label=str(one["label"]),
        variant=str(one["variant"]),
        family=one["family"],
        passing=find_passing(own),
        speedups={int(n): Estimate(value, low, high) for n, value, low, high in _list_speedups(own)},
        loss=losses.tell(one),
        error=_find_error(one),
        error_on=one["error_on"] if units.there(one["error_on"]) else None,
        error_ends=(one["error_low"], one["error_high"]) if units.there(one["error_low"]) else None,
        null=one["error_of_mean"] if units.there(one["error_of_mean"]) else None,
        memory=memory.get(longest) if longest is not None else None,
        memory_at=longest,
        state=kept,
        state_share=share,
        state_at=at,
    )


def _find_error(row: Mapping[str, Any]) -> float | None:
    if units.there(row["error"]):
        return float(row["error"])
    return 0.0 if losses.is_exact(row) else None


def _list_speedups(own: select.Columns) -> Iterable[tuple[float, float, float | None, float | None]]:
    ordered = select.order_series(own, "speedup", "speedup_low", "speedup_high")
    for length, value, low, high in zip(*ordered, strict=True):
        known = low > 0 and high > 0
        yield length, value, low if known else None, high if known else None


def _list_values(own: select.Columns) -> dict[int, float]:
    """Peak memory by length, where it was measured."""
    pairs = zip(own["seq_len"].tolist(), own["peak_memory_bytes"].tolist(), strict=True)
    return {int(n): float(value) for n, value in pairs if units.there(value) and units.there(n)}


# -- what decoding keeps --------------------------------------------------------------------------------------------

_SHAPE = ("dtype", "batch", "heads", "head_dim", "kv_heads")  # what a state's bytes depend on


@dataclass(frozen=True)
class _State:
    """What a variant keeps after a context, as bytes and as a share of the baseline's there."""

    shape: tuple[Any, ...]
    context: int
    bytes: int
    share: float | None


def _find_state(
    row: Mapping[str, Any], states: Mapping[str, Sequence[_State]]
) -> tuple[int | None, float | None, int | None]:
    """After the longest context, at the row's own shape where that was measured; at others the share alone."""
    shape = _read_shape(row)
    best = max(states.get(row["label"], ()), key=lambda state: (state.shape == shape, state.context), default=None)
    if best is None or (best.share is None and best.shape != shape):
        return None, None, None
    return best.bytes if best.shape == shape else None, best.share, best.context


def _read_shape(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] if units.there(row[name]) else None for name in _SHAPE)


def _list_states(rows: Frame) -> Mapping[str, Sequence[_State]]:
    """All states that were measured, by label."""
    kept = rows[(rows["status"] == "ok") & (rows["mode"] == "decode") & (rows["state_bytes"] > 0)]
    kept = kept[kept["seq_len"].notna()]
    columns = ["label", "is_baseline", "seq_len", "state_bytes", "machine", *_SHAPE]
    lines = [dict(zip(columns, line, strict=True)) for line in zip(*(kept[n].tolist() for n in columns), strict=True)]
    # but for the key-value heads, in which the baseline may well differ
    held = {(line["machine"], *_read_shape(line)[:-1], line["seq_len"]): line for line in lines if line["is_baseline"]}
    found: dict[str, list[_State]] = {}
    for line in lines:
        shape, size = _read_shape(line), line["state_bytes"]
        base = held.get((line["machine"], *shape[:-1], line["seq_len"]))
        share = size / base["state_bytes"] if base else None
        found.setdefault(line["label"], []).append(_State(shape, int(line["seq_len"]), int(size), share))
    return found
