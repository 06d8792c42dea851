"""Mechanisms that an answer leaves out, because another one of about the same cost has clearly better quality.

Quality is clearly better if the 95% interval of the difference excludes 0 and the difference exceeds 2%. Perplexities
are compared pairwise over the same text segments, accuracies by their intervals over seeds or questions. Without such
an interval, as for relative errors, nothing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ... import units
from ...results.stats import MARGIN, estimate_mean
from ..comparable_quality import QualityFigure, describe_measured_spec
from ..formatting import join_words

MAX_COST_RATIO = 1.1  # of a neighbour to the mechanism that it replaces, for each cost


@dataclass(frozen=True)
class Competitor:
    """A mechanism of an answer. costs: by name, such as ``time`` and, when decoding, ``state``; lower is better.
    figures: perplexity and accuracies by metric, all of one `QualitySet` each, and verified for the answer."""

    label: str
    costs: Mapping[str, float]
    figures: Mapping[str, QualityFigure]


@dataclass(frozen=True)
class BetterNeighbour:
    """Why a mechanism is left out: ``neighbour`` has clearly better quality of this metric."""

    competitor: Competitor
    neighbour: Competitor
    metric: str

    def describe(self) -> str:
        """``attention_sinks has 1.02x its time and 1.06x instead of 1.79x the perplexity (SmolLM2-135M, ..)``."""
        figure, better = self.competitor.figures[self.metric], self.neighbour.figures[self.metric]
        costs = ((name, cost, self.neighbour.costs[name]) for name, cost in self.competitor.costs.items() if cost > 0)
        ratios = (f"{units.ratio(other / cost)} its {name}" for name, cost, other in costs)
        value = units.ratio(better.value) if self.metric == "perplexity" else units.percent(better.value)
        measured = describe_measured_spec(self.neighbour.label, better.measured_spec).replace(", measured", " measured")
        quality = f"{value}{measured} instead of {figure.describe(self.competitor.label)}"
        return f"{self.neighbour.label} has {join_words([*ratios, quality])}"


def find_better_neighbours(competitors: Sequence[Competitor]) -> list[BetterNeighbour | None]:
    """For each mechanism, in the same order, the neighbour because of which an answer leaves it out, or None.

    A neighbour has at most 1.1 times each cost, has clearly better quality in some metric, clearly worse in none, and
    is itself not left out.
    """
    results: dict[int, BetterNeighbour | None] = {}
    for index in sorted(range(len(competitors)), key=lambda i: _sort_key(competitors[i])):
        rivals = [competitors[i] for i, neighbour in results.items() if neighbour is None]
        results[index] = next(filter(None, (_match(competitors[index], rival) for rival in rivals)), None)
    return [results[index] for index in range(len(competitors))]


def _sort_key(competitor: Competitor) -> tuple[float, float, str]:
    """Best quality first, so that a mechanism is compared with all that may be better."""
    perplexity = competitor.figures.get("perplexity")
    accuracy = sum(figure.value for metric, figure in competitor.figures.items() if metric != "perplexity")
    return perplexity.value if perplexity else math.inf, -accuracy, competitor.label


def _match(competitor: Competitor, other: Competitor) -> BetterNeighbour | None:
    if any(not other.costs.get(name, math.nan) <= MAX_COST_RATIO * cost for name, cost in competitor.costs.items()):
        return None
    pairs = [(figure, other.figures[x]) for x, figure in competitor.figures.items() if x in other.figures]
    better = [figure.metric for figure, others in pairs if is_clearly_better(others, figure)]
    worse = any(is_clearly_better(figure, others) for figure, others in pairs)
    return BetterNeighbour(competitor, other, better[0]) if better and not worse else None


def is_significantly_better(figure: QualityFigure, other: QualityFigure) -> bool:
    """Whether an error or perplexity is lower than another of the same set, beyond the interval, however little.

    Exact mechanisms need no interval; without one nothing else is significantly better.
    """
    if figure.conditions is None:
        return figure.value < other.value
    if figure.metric == "error":  # in each layer
        return _find_least_difference(figure.layer_errors, other.layer_errors) > 0
    return is_clearly_better(figure, other, margin=0.0)


def is_clearly_better(figure: QualityFigure, other: QualityFigure, *, margin: float = MARGIN) -> bool:
    """Whether a quality is better than another of the same set and metric, beyond the intervals and by more than a
    margin, by default 2%. Errors never are."""
    if figure.metric == "error":
        return False
    if figure.metric != "perplexity":
        intervals = figure.low is not None and other.high is not None and figure.low > other.high
        return intervals and figure.value - other.value > margin
    # in each text segment; the ratios of exact mechanisms are 1
    exact = (0.0,) * len(figure.log_ratios or other.log_ratios)
    logs, other_logs = (exact if x.conditions is None else x.log_ratios for x in (figure, other))
    difference = sum(other_logs) / len(other_logs) - sum(logs) / len(logs) if logs and other_logs else 0.0
    return _find_least_difference(logs, other_logs) > 0 and difference > math.log1p(margin)


def _find_least_difference(values: Sequence[float], others: Sequence[float]) -> float:
    """The lower end of the 95% interval of the mean of the paired differences, others - values; -inf without one."""
    if len(values) != len(others):
        return -math.inf
    interval = estimate_mean([b - a for a, b in zip(values, others, strict=True)]).interval() if values else None
    return interval[0] if interval else -math.inf
