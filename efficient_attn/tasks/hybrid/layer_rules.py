"""Rules that choose the layers of a model in which a mechanism replaces the model's own attention.

Two rules use measurements of the model: ``greedy``, which adds the layer that raises the loss least with those already
replaced, and ``linear``, which takes layers by their effects alone and predicts that these add up. The others need none
and are compared at the same number of layers with their own attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from ...errors import NotNeeded

MeasuredRule = Literal["greedy", "linear"]
Rule = Literal["greedy", "linear", "spaced", "ends", "everywhere", "uniform"]
WITHOUT_LIMIT: tuple[Rule, ...] = ("everywhere",)


@dataclass(frozen=True, kw_only=True)
class LayerEffects:
    """Changes of a model's loss in nats a token. single: with a mechanism in one layer, by layer. steps: the layers
    that the greedy rule adds, in order, each with the change once it is added."""

    single: tuple[float, ...]
    steps: tuple[tuple[int, float], ...]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.single)

    def predict(self, replaced: Iterable[int]) -> float:
        """The change with a mechanism in these layers, if single effects add up."""
        return sum(self.single[layer] for layer in replaced)


def choose_layers(
    rule: Rule, effects: LayerEffects, limit: float | None, *, counted_by: MeasuredRule = "greedy"
) -> tuple[int, ...]:
    """The replaced layers, sorted. limit: by how much the perplexity may rise, as a share of the model's own.
    counted_by: the rule of which ``spaced`` and ``ends`` replace as many layers. ``uniform`` replaces all layers, by a
    mechanism with more keys.

    Raises `NotNeeded` if the rule can replace no layer within the limit.
    """
    if limit is None or rule in ("everywhere", "uniform"):
        return tuple(range(effects.layers))
    if rule == "greedy":
        count = _count_within([change for _, change in effects.steps], limit)
        return _require(sorted(layer for layer, _ in effects.steps[:count]), limit)
    if rule == "linear":
        order = sorted(range(effects.layers), key=effects.single.__getitem__)
        within = _count_within(list(accumulate(effects.single[layer] for layer in order)), limit)
        return _require(sorted(order[:within]), limit)
    count = len(choose_layers(counted_by, effects, limit))
    own_layers = place_own_layers(rule, effects.layers, effects.layers - count)
    return tuple(layer for layer in range(effects.layers) if layer not in own_layers)


def place_own_layers(rule: Rule, layers: int, count: int) -> list[int]:
    """Where ``count`` layers keep the model's own attention: at equal distances, or at both ends, with one more at the
    beginning if the number is odd."""
    if rule == "spaced":
        return [math.floor((i + 0.5) * layers / count) for i in range(count)]
    first = (count + 1) // 2
    return [*range(first), *range(layers - (count - first), layers)]


def _count_within(changes: Sequence[float], limit: float) -> int:
    """How many layers are replaced at the last change that is within the limit; earlier ones may exceed it."""
    return max((n for n, change in enumerate(changes, 1) if change <= math.log1p(limit)), default=0)


def _require(layers: Sequence[int], limit: float | None) -> tuple[int, ...]:
    if not layers:
        raise NotNeeded(f"no layer can be replaced with a perplexity within {100 * (limit or 0):g}% of the model's own")
    return tuple(layers)


def format_layers(layers: Sequence[int]) -> str:
    """Numbers of layers with ranges: ``0-3 7``; ``none``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"
