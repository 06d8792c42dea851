"""Approximation error of each timed variant: relative error of the same spec against exact attention, as a phrase."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from .. import units
from ..results.stats import estimate_mean
from . import formatting, select
from .comparable_quality import (
    ROUNDING_ERROR,
    MeasuredQuality,
    QualityConditions,
    QualityFigure,
    QualitySet,
    canonicalise_spec,
    describe_measured_spec,
)
from .gather import Frame

NULL_ERROR_RANGE = (0.9, 1.2)  # error over that of a trivial predictor: within this range, about the same
ERROR_COLUMNS = ("error", "error_low", "error_high", "error_of_mean", "error_on", "error_how", "error_spec")
NO_ERROR_CELLS = (*[float("nan")] * 4, None, None, None)  # of ``ERROR_COLUMNS``
NOT_MEASURED_TEXT, EXACT_TEXT = "not measured", "exact"
EXACT_MECHANISMS = ("full", "bare_sdpa")  # exact attention, also of the suites' plug-ins, which call torch directly
# exact attention of models with shared key-value heads, which other models have to be trained for
SHARED_KV_MECHANISMS = ("gqa", "mqa", "sdpa_gqa")
NOT_APPLICABLE = "not applicable:"  # starts the reason of rows whose mechanism has to be trained


def add_errors(rows: Frame) -> Frame:
    """Add the columns ``ERROR_COLUMNS``: error of the same spec in the rows of fidelity, its interval, the error of
    predicting the mean of v, conditions (``error_on``) and method (``error_how``) as text, and the measured spec.

    All errors of one setting, mode and direction come from one `QualitySet`, that of `MeasuredQuality.choose_shown`.
    Empty if it was not measured, and for rows without timings.
    """
    measured = list_errors(rows)
    cells: dict[Any, tuple[Any, ...]] = {}
    timed = rows[rows["mode"].notna()].assign(spec=lambda x: x["variant"].map(canonicalise_spec))
    group_columns = [*select.SETTING_COLUMNS, "mode", "causal"]
    for _, part in timed.groupby(group_columns, dropna=False, sort=False) if measured.sets else ():
        causal, dtype, specs = part["causal"].iloc[0], part["dtype"].iloc[0], set(part["spec"])
        chosen = measured.choose_shown(specs, causal=causal, dtype=dtype)
        if chosen is not None:
            cells_by_spec = {spec: _make_cells(chosen, spec) for spec in specs}
            cells |= {index: cells_by_spec[spec] for index, spec in part["spec"].items()}
    columns = [cells.get(index, NO_ERROR_CELLS) for index in rows.index]
    return rows.join(pd.DataFrame(columns, index=rows.index, columns=list(ERROR_COLUMNS)))


def _make_cells(errors: QualitySet, spec: str) -> tuple[Any, ...]:
    """Cells of a spec in the order of ``ERROR_COLUMNS``."""
    measured = errors.find(spec)
    if measured is None:
        return NO_ERROR_CELLS
    measured_spec, figure = measured
    null = f"where the mean of v has {units.number(figure.null_error)}" if units.is_present(figure.null_error) else ""
    method = ", ".join(filter(None, (str(errors.conditions.dtype), null)))
    estimates = figure.value, *compute_error_interval(figure.layer_errors), figure.null_error
    return *estimates, errors.conditions.describe(), method, measured_spec


def list_errors(rows: Frame) -> MeasuredQuality:
    """Errors of each spec, averaged over layers, for each combination of inputs, direction, length, dtype and layers;
    and the reasons of mechanisms whose error is not applicable."""
    fidelity_rows = select.filter_fidelity(rows).assign(spec=lambda x: x["variant"].map(canonicalise_spec))
    figures: dict[QualityConditions, dict[str, QualityFigure]] = {}
    group_columns = ["inputs", "causal", "seq_len", "dtype", "spec"]
    for (inputs, causal, length, dtype, spec), part in fidelity_rows.groupby(group_columns, dropna=False, sort=False):
        layers = tuple(sorted(int(layer) for layer in part["layer"].dropna().unique()))
        conditions = QualityConditions(
            inputs=str(inputs) if units.is_present(inputs) else None,
            length=int(length) if length > 0 else None,
            causal=bool(causal) if units.is_present(causal) else None,
            samples=layers,
            dtype=str(dtype) if units.is_present(dtype) else None,
        )
        errors = tuple(part.groupby("layer", dropna=False)["relative_error"].mean().tolist())
        mean = sum(errors) / len(errors)
        figures.setdefault(conditions, {})[spec] = QualityFigure(
            metric="error",
            value=mean,
            text=f"relative error {units.number(mean)}",
            conditions=conditions,
            runs=tuple(dict.fromkeys(map(str, part["run_id"]))),
            layer_errors=errors,
            null_error=part["mean_value_error"].mean(),
        )
    sets = tuple(QualitySet(conditions, by_spec) for conditions, by_spec in figures.items())
    return MeasuredQuality(sets, list_not_applicable(rows, "fidelity"))


def list_not_applicable(rows: Frame, task: str) -> dict[str, str]:
    """The reason by spec, of mechanisms that a task refused because they have to be trained."""
    refused = rows[(rows["task"] == task) & (rows["status"] == "unsupported")]
    return {
        canonicalise_spec(name): reason.removeprefix(NOT_APPLICABLE).strip()
        for name, reason in zip(refused["variant"], refused["reason"].astype(str), strict=True)
        if reason.startswith(NOT_APPLICABLE)
    }


def find_refusal(spec: str, kv_heads: int | None, not_applicable: Mapping[str, str]) -> str:
    """Why a mechanism has no approximation error without training; empty if it may have one."""
    if spec in not_applicable:
        return not_applicable[spec]
    if spec.partition(":")[0] in SHARED_KV_MECHANISMS:
        heads = "as many key-value heads" if kv_heads is None else formatting.format_count(kv_heads, "key-value head")
        return f"exact attention of models trained with {heads}"
    if spec.partition(":")[0] == "mla":
        return "mla has to be trained"
    return ""


def describe_error(row: Mapping[str, Any]) -> str:
    """Approximation error of a row: ``relative error 0.08``, ``as far from exact attention as the mean of v``."""
    error: Any = row["error"]
    null: Any = row["error_of_mean"]
    if not units.is_present(error):
        return EXACT_TEXT if is_exact(row) else f"error {NOT_MEASURED_TEXT}"
    if error < ROUNDING_ERROR:
        return "exact up to rounding"
    has_null = units.is_present(null) and null > 0
    share, predictor = (error / null, "the mean of v") if has_null else (error, "zeros")
    if share < NULL_ERROR_RANGE[0]:
        return f"relative error {units.number(error)}"
    if share <= NULL_ERROR_RANGE[1]:
        return f"as far from exact attention as {predictor}"
    return f"farther from exact attention than {predictor}"


def is_exact(row: Mapping[str, Any]) -> bool:
    """Whether a row is exact attention by its name."""
    return canonicalise_spec(str(row["variant"])) in EXACT_MECHANISMS


def describe_conditions(row: Mapping[str, Any]) -> str:
    """Conditions of a row's error: ``MiniLM, N = 384, bidirectional, mean over 3 layers``; and the measured spec, if it
    differs from the row's."""
    return f"{row['error_on']}{describe_measured_spec(str(row['variant']), row.get('error_spec'))}"


def describe_error_inputs(rows: Collection[Mapping[str, Any]], *, with_method: bool = False) -> str:
    """The conditions, and ``with_method`` the method, under which these rows' errors were measured; empty for none."""
    measured = [(row["error_on"], row["error_how"]) for row in rows if units.is_present(row["error"])]
    parts = [f"{on}, {how}" if with_method else on for on, how in measured]
    measured_specs = [(row["variant"], describe_measured_spec(row["variant"], row.get("error_spec"))) for row in rows]
    parts += [f"{variant}{text.replace(',', '', 1)}" for variant, text in measured_specs if text]
    return "; ".join(dict.fromkeys(parts))


def compute_error_interval(errors: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean over layers, clipped to the smallest error; NaN for one layer."""
    interval = estimate_mean(errors).interval()
    return (max(interval[0], min(errors)), interval[1]) if interval else (float("nan"), float("nan"))
