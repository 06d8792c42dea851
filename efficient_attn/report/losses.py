"""What each timed variant loses: the error of the same spec against exact attention, and what that means in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from .. import units
from ..errors import UsageError
from ..results.stats import mean_of
from ..spec import parse
from . import select, words
from .gather import Frame

ROUNDING = 1e-4  # errors below are rounding
NEAR = (0.9, 1.2)  # errors over that of a predictor that knows nothing: about as far off as it
COLUMNS = ("error", "error_low", "error_high", "error_of_mean", "error_on", "error_how", "error_length", "error_causal")
NOT_MEASURED, EXACT = "not measured", "exact"

_Key: TypeAlias = tuple[str, bool]  # a spec, and whether its heads share keys


@dataclass(frozen=True)
class _Loss:
    """A spec's error with its interval over layers, that of predicting the mean of v (NaN where unknown), and on what
    and how both were measured."""

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
        """In the order of ``COLUMNS``."""
        return self.error, self.low, self.high, self.of_mean, self.on, self.how, self.length, self.causal


def add_losses(rows: Frame) -> Frame:
    """Rows with ``error``, ``error_low``, ``error_high``, ``error_of_mean``, and in words ``error_on`` and
    ``error_how``, and ``error_length`` and ``error_causal``: of the same spec in the rows of fidelity.

    Where it was measured in several places, that of the row's own dtype and direction, at the greatest length. Empty
    where it was not measured, and for rows that time nothing.
    """
    measured = _list_losses(select.keep_faithful(rows))
    found = []
    places = zip(*(rows[name].tolist() for name in ("mode", "dtype", "causal")), strict=True)
    for key, (mode, dtype, causal) in zip(_name_specs(rows), places, strict=True):
        known = measured.get(key, ()) if units.there(mode) else ()
        best = max(known, key=lambda x: (x.dtype == dtype, x.causal == causal, x.length), default=None)
        found.append(best.cells if best else (*[float("nan")] * 4, None, None, float("nan"), None))
    return rows.join(pd.DataFrame(found, index=rows.index, columns=list(COLUMNS)))


def tell(row: Mapping[str, Any]) -> str:
    """What a row's spec loses: ``error 0.08``, ``as far from exact attention as the mean of v``."""
    error: Any = row["error"]
    null: Any = row["error_of_mean"]
    if not units.there(error):
        return EXACT if is_exact(row) else f"error {NOT_MEASURED}"
    if error < ROUNDING:
        return "exact up to rounding"
    known = units.there(null) and null > 0
    share, what = (error / null, "the mean of v") if known else (error, "zeros")
    if share < NEAR[0]:
        return f"error {units.number(error)}"
    how = "as far from exact attention as" if share <= NEAR[1] else "farther from exact attention than"
    return f"{how} {what}"


def is_exact(row: Mapping[str, Any]) -> bool:
    """Whether a row is exact attention by its name, which is what errors are measured against."""
    return name_spec(str(row["variant"])) == "full"


def tell_places(rows: Iterable[Mapping[str, Any]], *, whole: bool = False) -> str:
    """On what the errors of these rows were measured, with ``whole`` how as well; empty where none was."""
    known = [(row["error_on"], row["error_how"]) for row in rows if units.there(row["error"])]
    return "; ".join(dict.fromkeys(f"{on}, {how}" if whole else on for on, how in known))


def _list_losses(rows: Frame) -> Mapping[_Key, Sequence[_Loss]]:
    """The mean over layers of each spec, on all inputs, lengths and dtypes on which it was measured."""
    found: dict[_Key, list[_Loss]] = {}
    rows = rows.assign(spec=_name_specs(rows))
    place = ["spec", "inputs", "causal", "seq_len", "dtype"]
    for (key, inputs, causal, length, dtype), part in rows.groupby(place, dropna=False, sort=False):
        layers, null = part["layer"].nunique(), part["mean_value_error"].mean()
        on = words.inputs_words(inputs, causal, int(length) if length > 0 else None) or "inputs that are not named"
        parts = [str(dtype)]
        parts += [f"mean over {words.count(layers, 'layer')}"] if layers > 1 else []
        parts += [f"where the mean of v has {units.number(null)}"] if units.there(null) else []
        error = part["relative_error"].mean()
        loss = _Loss(
            dtype, causal, length, error, *find_ends(part["relative_error"].tolist()), null, on, ", ".join(parts)
        )
        found.setdefault(key, []).append(loss)
    return found


def find_ends(errors: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the mean over layers, but not below the least of them; NaN for one layer."""
    ends = mean_of(errors).interval()
    return (max(ends[0], min(errors)), ends[1]) if ends else (float("nan"), float("nan"))


def _name_specs(rows: Frame) -> list[_Key]:
    """What tells the rows' specs apart: the mechanism with its options, whatever runs it, and shared heads."""
    variants = rows["variant"].tolist()
    known = {variant: name_spec(variant) for variant in set(variants)}
    heads = zip(rows["kv_heads"].tolist(), rows["heads"].tolist(), strict=True)
    shared = [units.there(kv) and units.there(all_) and kv != all_ for kv, all_ in heads]
    return [(known[variant], one) for variant, one in zip(variants, shared, strict=True)]


def name_spec(variant: str) -> str:
    """A spec in its canonical form, without a backend; a text that is none as it is."""
    try:
        return str(parse(variant).without_backend())
    except UsageError:
        return variant
