"""Quality of a mechanism for given requirements: error, perplexity or accuracy, and the inputs it was measured on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ... import units
from ...errors import make_deprecated_alias, make_unknown_error
from ...results.stats import Estimate, estimate_geometric_mean, estimate_mean
from .. import approximation_errors, formatting, select
from ..gather import Frame
from ..sections.trained_scores import filter_trained, list_tests
from .cost_curves import CostCurve
from .requirements import Requirements

ACCURACY_METRICS = ("accuracy", "share of whole sequences")  # metrics that are a share of correct answers
SHARED_KV_MECHANISMS = ("gqa", "mqa")  # exact attention for models with shared key-value heads
UNCERTAIN = "uncertain"  # marks a decision by a value whose 95% interval contains the bound


@dataclass(frozen=True)
class QualityFigure:
    """A measured quality. metric: ``error``, ``perplexity``, or the task of an accuracy. on: the inputs. runs: the runs
    with its rows. length, causal: of the measured calls. low, high: its 95% interval, over seeds, text segments or
    questions, if there is one. sure: whether the whole interval lies on the value's side of the bound; None without an
    interval or a bound."""

    metric: str
    value: float
    on: str
    text: str
    runs: tuple[str, ...] = ()
    length: int | None = None
    causal: bool | None = None
    low: float | None = None
    high: float | None = None
    sure: bool | None = None

    what = make_deprecated_alias("what", "metric")

    def with_certainty(self, meets_bound: Callable[[float], bool]) -> QualityFigure:
        """Return a copy with ``sure`` set for this bound."""
        if self.low is None or self.high is None:
            return self
        return replace(self, sure=meets_bound(self.low) == meets_bound(self.value) == meets_bound(self.high))

    def format_uncertainty(self) -> str:
        """``uncertain: 82.4%-100%``; empty if certain or unknown."""
        if self.sure is not False:
            return ""
        format_value = units.ratio if self.metric == "perplexity" else units.percent
        return f"{UNCERTAIN}: {format_value(self.low)}{units.INTERVAL_DASH}{format_value(self.high)}"

    def format_differences(self, requirements: Requirements) -> str:
        """How the measured calls differ from the required ones: ``not measured at 16,384, not causal``; else empty."""
        differences = []
        if self.length not in (None, requirements.seq_len):
            differences.append(f"not measured at {requirements.seq_len:,}")
        if None not in (self.causal, requirements.resolved_causal) and self.causal != requirements.resolved_causal:
            differences.append("not causal" if requirements.resolved_causal else "not bidirectional")
        return ", ".join(differences)

    def list_caveats(self, requirements: Requirements) -> list[str]:
        """The differences and the uncertainty, as far as there are any."""
        return list(filter(None, (self.format_differences(requirements), self.format_uncertainty())))


@dataclass(frozen=True)
class Quality:
    """Perplexities and accuracies of all rows, computed on first use. Errors come from the rows of the curves."""

    rows: Frame

    @cached_property
    def _labelled_rows(self) -> Frame:
        return self.rows if "label" in self.rows else select.add_labels(self.rows)

    @cached_property
    def perplexity_ratios(self) -> Mapping[str, QualityFigure]:
        """Perplexity over the model's own, by spec."""
        return _list_perplexities(self._labelled_rows)

    @cached_property
    def accuracies(self) -> Mapping[str, Mapping[str, QualityFigure]]:
        """Accuracy by task and spec."""
        return _list_accuracies(self._labelled_rows)

    def check(self, requirements: Requirements) -> None:
        """Raise `UsageError` for a task without scores in these rows."""
        for task in requirements.min_accuracy:
            if task not in self.accuracies:
                raise make_unknown_error("task of --min-accuracy", task, sorted(self.accuracies))

    def evaluate(self, curve: CostCurve, requirements: Requirements) -> tuple[list[QualityFigure], str]:
        """Return the qualities that the requirements bound, and the reason why one fails, or "" if all are met."""
        figures: list[QualityFigure] = []
        for metric, figure, meets_bound in self._list_bounds(curve, requirements):
            if figure is None:
                return figures, f"{metric} not measured"
            figures.append(figure.with_certainty(meets_bound))
            if not meets_bound(figure.value):
                caveats = figures[-1].list_caveats(requirements)
                return figures, "; ".join([f"{figure.text} on {figure.on}", *caveats])
        return figures, ""

    def _list_bounds(
        self, curve: CostCurve, requirements: Requirements
    ) -> Iterator[tuple[str, QualityFigure | None, Callable[[float], bool]]]:
        """Yield for each bound its quantity, the measured quality or None, and the predicate to satisfy."""
        spec, max_error, max_ratio = _name_spec(curve), requirements.max_error, requirements.max_ppl_ratio
        if max_error is not None:
            yield "error", find_error(curve, requirements), lambda value: value <= max_error
        if max_ratio is not None:
            figure = EXACT_RATIO if is_exact(curve, requirements) else self.perplexity_ratios.get(spec)
            yield "perplexity in a model", figure, lambda value: value <= max_ratio
        for task, least in requirements.min_accuracy.items():
            yield task, self.accuracies[task].get(spec), lambda value, least=least: value >= least


EXACT_RATIO = QualityFigure("perplexity", 1.0, "any model", "the model's own perplexity")


def is_exact(curve: CostCurve, requirements: Requirements) -> bool:
    """Whether a mechanism computes the exact attention of the required model."""
    if approximation_errors.is_exact(curve.row):
        return True
    shares_heads = _name_spec(curve).partition(":")[0] in SHARED_KV_MECHANISMS
    return shares_heads and requirements.kv_heads is not None and curve.kv_heads == requirements.kv_heads


def find_error(curve: CostCurve, requirements: Requirements) -> QualityFigure | None:
    """Relative error of the output against exact attention on a model's activations, mean over layers."""
    if is_exact(curve, requirements):
        return QualityFigure("error", 0.0, "anything", "exact")
    error, length = curve.row["error"], curve.row["error_length"]
    if not units.is_present(error):
        return None
    on, text = f"{curve.row['error_on']}, {curve.row['error_how']}", f"error {units.number(error)}"
    error_length, causal = int(length) if units.is_present(length) else None, _as_bool(curve.row["error_causal"])
    return QualityFigure("error", float(error), on, text, length=error_length, causal=causal)


def _as_bool(value: Any) -> bool | None:
    return bool(value) if units.is_present(value) else None


def _name_spec(curve: CostCurve) -> str:
    return approximation_errors.canonicalise_spec(str(curve.row["variant"]))


def _list_perplexities(rows: Frame) -> dict[str, QualityFigure]:
    """Perplexity ratios of models with all layers swapped, mean over segments, at the longest measured length."""
    if "swap.loss" not in rows:
        return {}
    swap_rows = rows[
        (rows["status"] == "ok") & (rows["task"] == "swap") & rows["layer"].isna() & rows["swap.loss"].notna()
    ]
    figures: dict[str, QualityFigure] = {}
    for (length, inputs), part in swap_rows.groupby(["seq_len", "inputs"], sort=True):
        base = part.loc[part["is_baseline"], "swap.loss"].mean()
        if not math.isfinite(base):
            continue
        for variant, variant_rows in part.groupby("variant", sort=False):
            ratio = math.exp(float(variant_rows["swap.loss"].mean()) - float(base))
            on, text = f"{inputs}, {int(length):,} tokens", f"{units.ratio(ratio)} perplexity"
            runs, causal = tuple(dict.fromkeys(variant_rows["run_id"])), _as_bool(variant_rows["causal"].iloc[0])
            ends = _estimate_segment_interval(variant_rows, part[part["is_baseline"]])
            figure = QualityFigure("perplexity", ratio, on, text, runs, int(length), causal, *ends)
            figures[approximation_errors.canonicalise_spec(str(variant))] = figure
    return figures


def _estimate_segment_interval(variant_rows: Frame, baseline_rows: Frame) -> tuple[float | None, float | None]:
    """The interval of a perplexity ratio over the text segments that both read; repeated segments count once."""
    if "swap.segment" not in variant_rows:
        return None, None
    segment_losses = [rows.groupby("swap.segment")["swap.loss"].mean() for rows in (variant_rows, baseline_rows)]
    differences = (segment_losses[0] - segment_losses[1]).dropna()
    return estimate_geometric_mean([math.exp(x) for x in differences])[1:] if len(differences) else (None, None)


def _list_accuracies(rows: Frame) -> dict[str, dict[str, QualityFigure]]:
    """Accuracies by task and spec: of small models, mean over seeds at the best learning rate, and of ``retrieval``."""
    figures: dict[str, dict[str, QualityFigure]] = defaultdict(dict)
    for test in sorted(list_tests(filter_trained(rows)), key=lambda test: test.length):
        if test.metric not in ACCURACY_METRICS:
            continue
        task = test.name.split(",")[0]
        for trained in test.scored_results:
            if trained.score is not None:
                seeds = formatting.format_count(len(trained.best_attempts), "seed")
                on = f"small models trained at length {test.length}, {seeds}"
                spec = approximation_errors.canonicalise_spec(str(trained.rows.iloc[0]["variant"]))
                figures[task][spec] = _make_accuracy(task, trained.score, on, trained.best_attempts, test.length)
    retrieval_rows: Any = rows[(rows["status"] == "ok") & (rows["task"] == "retrieval") & rows["accuracy"].notna()]
    key_columns = ["inputs", "seq_len", "variant"]
    for (inputs, length, variant), part in retrieval_rows.groupby(key_columns, sort=True, dropna=False):
        spec, on = approximation_errors.canonicalise_spec(str(variant)), f"{inputs}, {int(length):,} tokens"
        figures["retrieval"][spec] = _make_accuracy("retrieval", _estimate_accuracy(part), on, part, int(length))
    return figures


def _make_accuracy(task: str, score: Estimate, on: str, rows: Frame, length: int) -> QualityFigure:
    text, runs = f"{units.percent(score.value)} of {task}", tuple(dict.fromkeys(rows["run_id"]))
    return QualityFigure(task, score.value, on, text, runs, length, low=score.low, high=score.high)


def _estimate_accuracy(rows: Frame) -> Estimate:
    """Share of correct answers: of one row with its interval over questions, else the mean over rows."""
    mean = estimate_mean(rows["accuracy"].tolist())
    if len(rows) > 1:
        low, high = mean.interval() or (0.0, 1.0)
        return Estimate(mean.value, max(low, 0.0), min(high, 1.0))
    ends = [rows.iloc[0].get(f"retrieval.accuracy_{end}") for end in ("low", "high")]
    low, high = (float(end) if units.is_present(end) else None for end in ends)
    return Estimate(mean.value, low, high)
