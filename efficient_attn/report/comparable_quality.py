"""Qualities grouped by the conditions under which they were measured, and the choice of one group for an answer.

Figures of different models, lengths, directions or layers are not comparable. All figures of an answer or a table
therefore come from one `QualitySet`, and only a set measured in the same direction, at half the length in question or
more, verifies a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from .. import units
from ..errors import UsageError, make_deprecated_alias
from ..spec import Spec, parse
from . import formatting

MIN_LENGTH_SHARE = 0.5  # of the length in question, at which a quality must have been measured
MAX_LENGTH_SHARE = 2.0  # at which a quality may have been measured to compare two mechanisms
ROUNDING_ERROR = 1e-4  # smaller errors count as rounding
UNCERTAIN = "uncertain"  # marks a decision by a value whose 95% interval contains the bound
MAX_OPTION_DIFFERENCE = 0.02  # between numeric options of specs that count as the same


@dataclass(frozen=True)
class QualityConditions:
    """What figures must share to be compared. inputs: label of the activations, the model or the task. samples: the
    layers, or texts that figures are means over; noun: what a sample is."""

    inputs: str | None
    length: int | None = None
    causal: bool | None = None
    samples: tuple[Any, ...] = ()
    noun: str = "layer"
    dtype: str | None = None

    @property
    def model(self) -> str:
        """The model's name: ``MiniLM``; empty if unknown."""
        return formatting.name_model(self.inputs)

    @property
    def aggregate(self) -> str:
        """``mean over 3 layers``; empty if unknown."""
        count = formatting.format_count(len(self.samples), self.noun)
        return {0: "", 1: count}.get(len(self.samples), f"mean over {count}")

    def describe(self) -> str:
        """``MiniLM, N = 384, bidirectional, mean over 3 layers``."""
        conditions = formatting.format_inputs(self.inputs, self.causal, self.length)
        return ", ".join(filter(None, (conditions, self.aggregate))) or "inputs that are not named"

    def verifies(self, length: int, causal: bool | None) -> bool:
        """Whether figures count for calls of this length and direction."""
        same_direction = self.causal is not None and self.causal == causal
        return same_direction and (self.length or 0) >= MIN_LENGTH_SHARE * length


@dataclass(frozen=True)
class QualityFigure:
    """A measured quality. metric: ``error``, ``perplexity``, or the task of an accuracy. conditions: of its
    measurement, None for exact mechanisms. runs: the runs with its rows. low, high: its 95% interval, over layers,
    seeds, text segments or questions, if there is one. measured_spec: the spec that was measured, which may differ from
    the mechanism's by `MAX_OPTION_DIFFERENCE`. verified: whether it was measured in the direction in
    question, at half the length or more. sure: whether the whole interval lies on the value's side of the bound; None
    without an interval or a bound. layer_errors: the errors whose mean it is; null_error: the error of predicting the
    mean of v, NaN if unknown. log_ratios: of a perplexity, for each of the conditions' samples."""

    metric: str
    value: float
    text: str
    conditions: QualityConditions | None = None
    runs: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    measured_spec: str | None = None
    verified: bool = True
    sure: bool | None = None
    layer_errors: tuple[float, ...] = ()
    null_error: float = math.nan
    log_ratios: tuple[float, ...] = ()

    what = make_deprecated_alias("what", "metric")

    @property
    def on(self) -> str:
        """The conditions as text: ``MiniLM, N = 384, bidirectional, mean over 3 layers``."""
        return self.conditions.describe() if self.conditions else "any model"

    @property
    def is_exact(self) -> bool:
        """Whether the measured calls computed exact attention, up to rounding."""
        exact_value = {"error": 0.0, "perplexity": 1.0}.get(self.metric, math.inf)
        return abs(self.value - exact_value) < ROUNDING_ERROR

    @property
    def length(self) -> int | None:
        """The length of the measured calls."""
        return self.conditions.length if self.conditions else None

    @property
    def causal(self) -> bool | None:
        """Whether the measured calls were causal."""
        return self.conditions.causal if self.conditions else None

    def with_certainty(self, meets_bound: Callable[[float], bool]) -> QualityFigure:
        """Return a copy with ``sure`` set for this bound."""
        if self.low is None or self.high is None:
            return self
        return replace(self, sure=meets_bound(self.low) == meets_bound(self.value) == meets_bound(self.high))

    def format_uncertainty(self) -> str:
        """``uncertain: 82.4%-100%``; empty if certain or unknown."""
        if self.sure is not False:
            return ""
        format_value = {"perplexity": units.ratio, "error": units.number}.get(self.metric, units.percent)
        return f"{UNCERTAIN}: {format_value(self.low)}{units.INTERVAL_DASH}{format_value(self.high)}"

    def describe(self, spec: str, *, with_conditions: bool = True) -> str:
        """``relative error 0.40 (MiniLM, N = 384, bidirectional, mean over 3 layers)``. spec: the mechanism's."""
        if self.conditions is None:
            return self.text
        measured_spec = describe_measured_spec(spec, self.measured_spec)
        value = f"{self.text} ({self.on}{measured_spec})" if with_conditions else f"{self.text}{measured_spec}"
        return "; ".join(filter(None, (value, self.format_uncertainty())))


@dataclass(frozen=True)
class QualitySet:
    """Comparable figures, by canonical spec."""

    conditions: QualityConditions
    figures: Mapping[str, QualityFigure]

    def find(self, spec: str) -> tuple[str, QualityFigure] | None:
        """The measured spec and figure of a spec, or of the nearest one whose numeric options differ by at most
        `MAX_OPTION_DIFFERENCE` and that is equal otherwise; None if there is none."""
        if spec in self.figures:
            return spec, self.figures[spec]
        differences = {other: compute_option_difference(spec, other) for other in self.figures}
        nearest = min(differences, key=lambda other: (differences[other], other), default=None)
        if nearest is None or differences[nearest] > MAX_OPTION_DIFFERENCE:
            return None
        return nearest, self.figures[nearest]

    def count(self, specs: Collection[str]) -> int:
        """Number of the specs that were measured."""
        return sum(self.find(spec) is not None for spec in specs)


@dataclass(frozen=True)
class QualityChoice:
    """The set that an answer uses. chosen: None if no spec was measured. verified: whether it verifies bounds at this
    length and direction. measured: everything that was measured."""

    length: int
    causal: bool | None
    chosen: QualitySet | None
    measured: MeasuredQuality

    @property
    def verified(self) -> bool:
        """Whether the set verifies bounds; if not, no set with any of the mechanisms does."""
        return self.chosen is not None and self.chosen.conditions.verifies(self.length, self.causal)

    def verifies(self, *, exact: bool) -> bool:
        """Whether a figure of the set verifies bounds. exact: whether it is that of exact attention; at a shorter
        length that only shows that the mechanism left nothing out there, such as a window longer than the text."""
        if not self.verified or self.chosen is None:
            return False
        return not exact or (self.chosen.conditions.length or 0) >= self.length

    @property
    def verifiable(self) -> bool:
        """Whether any set verifies bounds, whatever mechanisms it has."""
        return any(s.conditions.verifies(self.length, self.causal) for s in self.measured.sets)

    @property
    def longest(self) -> int | None:
        """The longest length at which anything was measured in this direction."""
        lengths = (s.conditions.length for s in self.measured.sets if s.conditions.causal == self.causal)
        return max((length for length in lengths if length is not None), default=None)

    def find(self, spec: str) -> QualityFigure | None:
        """The figure of a spec in the chosen set, with the measured spec, and whether it verifies bounds."""
        spec, figure = (self.chosen.find(spec) if self.chosen else None) or (spec, None)
        return figure and replace(figure, measured_spec=spec, verified=self.verifies(exact=figure.is_exact))

    def find_near(self, spec: str) -> QualityFigure | None:
        """The figure of a spec, if it was measured in the direction in question at half to twice the length."""
        figure = self.find(spec)
        near = figure is not None and figure.verified and (figure.length or 0) <= MAX_LENGTH_SHARE * self.length
        return figure if near else None

    def describe_unverified(self, spec: str) -> str:
        """``not verified at 8,192 (measured at 384, bidirectional, in MiniLM)``."""
        elsewhere = [s.conditions for s in self.measured.sets if s.find(spec)]
        nearest = max(elsewhere, key=lambda x: (x.causal == self.causal, x.length or 0, x.describe()), default=None)
        if nearest is None:
            return f"not verified at {self.length:,} (not measured)"
        length = "" if nearest.length is None else f"at {nearest.length:,}"
        model = f"in {nearest.model}" if nearest.model else ""
        measured = ", ".join(filter(None, (length, formatting.format_direction(nearest.causal), model)))
        return f"not verified at {self.length:,} (measured {measured})"


@dataclass(frozen=True)
class MeasuredQuality:
    """All measurements of one kind of quality. not_applicable: the reason by spec, for mechanisms whose quality cannot
    be measured without training."""

    sets: tuple[QualitySet, ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)

    def choose(
        self, specs: Collection[str], *, length: int, causal: bool | None, dtype: str | None = None
    ) -> QualityChoice:
        """Choose the set for an answer: of those that verify, the one with most of the specs; of several, one of the
        same dtype, then the one nearest in length, then the longest. If none verifies, one to show without verifying
        anything: of the same direction if there is one, then the longest."""

        def sort_key(quality_set: QualitySet) -> tuple[Any, ...]:
            conditions, count = quality_set.conditions, quality_set.count(specs)
            measured_length, same_dtype = conditions.length or 1, conditions.dtype == dtype
            if conditions.verifies(length, causal):
                distance = round(abs(math.log(measured_length / length)), 9)
                return True, count, same_dtype, -distance, measured_length, str(conditions.inputs)
            return False, conditions.causal == causal, measured_length, count, same_dtype, str(conditions.inputs)

        chosen = max((s for s in self.sets if s.count(specs)), key=sort_key, default=None)
        return QualityChoice(length, causal, chosen, self)

    def choose_shown(
        self, specs: Collection[str], *, causal: bool | None, dtype: str | None = None
    ) -> QualitySet | None:
        """Choose the set for a table of several lengths, which verifies nothing: of the same direction if there is one,
        then with most of the specs, of the same dtype, and the longest."""

        def sort_key(quality_set: QualitySet) -> tuple[Any, ...]:
            conditions = quality_set.conditions
            key = (conditions.causal == causal, quality_set.count(specs), conditions.dtype == dtype)
            return *key, conditions.length or 0, str(conditions.inputs)

        return max((s for s in self.sets if s.count(specs)), key=sort_key, default=None)


# -- specs ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def canonicalise_spec(variant: str) -> str:
    """Canonical form of a spec without its backend; invalid specs are returned unchanged."""
    try:
        return str(parse(variant).without_backend())
    except UsageError:
        return variant


def describe_measured_spec(spec: str, measured_spec: Any) -> str:
    """``, measured with sliding_window:window=127``; empty if that is the spec itself."""
    same = not units.is_present(measured_spec) or measured_spec == canonicalise_spec(spec)
    return "" if same else f", measured with {measured_spec}"


@lru_cache(maxsize=2**16)
def compute_option_difference(spec: str, other: str) -> float:
    """The largest relative difference between numeric options; infinite if the specs differ otherwise."""
    options, other_options = _list_options(spec), _list_options(other)
    if options.keys() != other_options.keys():
        return math.inf
    return max(_compare_values(value, other_options[name]) for name, value in options.items())


@lru_cache(maxsize=4096)
def _list_options(spec: str) -> Mapping[tuple[Any, ...], Any]:
    """The values of a spec's options by part and name; each part also has a nameless one."""
    try:
        parts: Sequence[Spec] = sorted(parse(spec).parts, key=lambda part: (part.name, str(part)))
    except UsageError:
        return {(spec,): None}
    return {
        (index, part.name, part.backend, option): value
        for index, part in enumerate(parts)
        for option, value in {"": None, **part.options}.items()
    }


def _compare_values(value: Any, other: Any) -> float:
    """The relative difference of two numbers, also in a text; infinite for other values that differ."""
    if value == other:
        return 0.0
    try:
        a, b = float(value), float(other)
    except ValueError:
        return math.inf
    return abs(a - b) / max(abs(a), abs(b)) if math.isfinite(a) and math.isfinite(b) else math.inf
