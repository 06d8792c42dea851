"""Approximation error of each timed variant: relative error of the same spec against exact attention, as a phrase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from .. import units
from ..errors import UsageError
from ..results.stats import estimate_mean
from ..spec import parse
from . import formatting, select
from .gather import Frame

ROUNDING_ERROR = 1e-4  # smaller errors count as rounding
NULL_ERROR_RANGE = (0.9, 1.2)  # error over that of a trivial predictor: within this range, about the same
ERROR_COLUMNS = (
    "error",
    "error_low",
    "error_high",
    "error_of_mean",
    "error_on",
    "error_how",
    "error_length",
    "error_causal",
)
NOT_MEASURED_TEXT, EXACT_TEXT = "not measured", "exact"

_SpecKey: TypeAlias = tuple[str, bool]  # a spec, and whether query heads share key-value heads


@dataclass(frozen=True)
class _SpecError:
    """Error of a spec with its interval over layers, error of predicting the mean of v (NaN if unknown), and the
    inputs and method of both."""

    dtype: Any
    causal: Any
    length: float
    error: float
    low: float
    high: float
    of_mean: float
    on: str
    how: str

    @property
    def cells(self) -> tuple[Any, ...]:
        """In the order of ``ERROR_COLUMNS``."""
        return self.error, self.low, self.high, self.of_mean, self.on, self.how, self.length, self.causal


def add_errors(rows: Frame) -> Frame:
    """Add the columns ``ERROR_COLUMNS``: error of the same spec in the rows of fidelity, its interval, the error of
    predicting the mean of v, inputs (``error_on``) and method (``error_how``) as text, length and direction.

    If it was measured in several configurations, that of the row's dtype and direction at the greatest length is used.
    Empty if it was not measured, and for rows without timings.
    """
    errors_by_spec = _list_errors(select.filter_fidelity(rows))
    cells = []
    configs = zip(*(rows[name].tolist() for name in ("mode", "dtype", "causal")), strict=True)
    for key, (mode, dtype, causal) in zip(_list_spec_keys(rows), configs, strict=True):
        candidates = errors_by_spec.get(key, ()) if units.is_present(mode) else ()
        best = max(candidates, key=lambda x: (x.dtype == dtype, x.causal == causal, x.length), default=None)
        cells.append(best.cells if best else (*[float("nan")] * 4, None, None, float("nan"), None))
    return rows.join(pd.DataFrame(cells, index=rows.index, columns=list(ERROR_COLUMNS)))


def describe_error(row: Mapping[str, Any]) -> str:
    """Approximation error of a row's spec: ``error 0.08``, ``as far from exact attention as the mean of v``."""
    error: Any = row["error"]
    null: Any = row["error_of_mean"]
    if not units.is_present(error):
        return EXACT_TEXT if is_exact(row) else f"error {NOT_MEASURED_TEXT}"
    if error < ROUNDING_ERROR:
        return "exact up to rounding"
    has_null = units.is_present(null) and null > 0
    share, predictor = (error / null, "the mean of v") if has_null else (error, "zeros")
    if share < NULL_ERROR_RANGE[0]:
        return f"error {units.number(error)}"
    comparison = (
        "as far from exact attention as" if share <= NULL_ERROR_RANGE[1] else "farther from exact attention than"
    )
    return f"{comparison} {predictor}"


def is_exact(row: Mapping[str, Any]) -> bool:
    """Whether a row is full attention by its name, the reference of all errors."""
    return canonicalise_spec(str(row["variant"])) == "full"


def describe_error_inputs(rows: Iterable[Mapping[str, Any]], *, with_method: bool = False) -> str:
    """The inputs, and ``with_method`` the method, with which these rows' errors were measured; empty for none."""
    measured = [(row["error_on"], row["error_how"]) for row in rows if units.is_present(row["error"])]
    return "; ".join(dict.fromkeys(f"{on}, {how}" if with_method else on for on, how in measured))


def _list_errors(rows: Frame) -> Mapping[_SpecKey, Sequence[_SpecError]]:
    """Errors of each spec, averaged over layers, for each combination of inputs, direction, length and dtype."""
    errors_by_spec: dict[_SpecKey, list[_SpecError]] = {}
    rows = rows.assign(spec=_list_spec_keys(rows))
    group_columns = ["spec", "inputs", "causal", "seq_len", "dtype"]
    for (key, inputs, causal, length, dtype), part in rows.groupby(group_columns, dropna=False, sort=False):
        layers, null = part["layer"].nunique(), part["mean_value_error"].mean()
        on = (
            formatting.format_inputs(inputs, causal, int(length) if length > 0 else None) or "inputs that are not named"
        )
        parts = [str(dtype)]
        parts += [f"mean over {formatting.format_count(layers, 'layer')}"] if layers > 1 else []
        parts += [f"where the mean of v has {units.number(null)}"] if units.is_present(null) else []
        error = part["relative_error"].mean()
        spec_error = _SpecError(
            dtype,
            causal,
            length,
            error,
            *compute_error_interval(part["relative_error"].tolist()),
            null,
            on,
            ", ".join(parts),
        )
        errors_by_spec.setdefault(key, []).append(spec_error)
    return errors_by_spec


def compute_error_interval(errors: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean over layers, clipped to the smallest error; NaN for one layer."""
    interval = estimate_mean(errors).interval()
    return (max(interval[0], min(errors)), interval[1]) if interval else (float("nan"), float("nan"))


def _list_spec_keys(rows: Frame) -> list[_SpecKey]:
    """Key of each row's spec: the mechanism with its options, without backend, and whether heads are shared."""
    variants = rows["variant"].tolist()
    specs = {variant: canonicalise_spec(variant) for variant in set(variants)}
    heads = zip(rows["kv_heads"].tolist(), rows["heads"].tolist(), strict=True)
    shared = [units.is_present(kv) and units.is_present(all_) and kv != all_ for kv, all_ in heads]
    return [(specs[variant], is_shared) for variant, is_shared in zip(variants, shared, strict=True)]


def canonicalise_spec(variant: str) -> str:
    """Canonical form of a spec without its backend; invalid specs are returned unchanged."""
    try:
        return str(parse(variant).without_backend())
    except UsageError:
        return variant
