"""Measured configurations that have the properties that requirements fix, or come nearest to them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .cost_curves import CostCurve
from .requirements import SHAPE, Requirements

OTHER = 1.0  # distance of another dtype, or to an unknown size: that of half the length or heads


def matches(config: Mapping[str, Any], requirements: Requirements) -> bool:
    """Whether a configuration has all properties that the requirements fix."""
    if config["mode"] != requirements.mode or config["device"] != requirements.device:
        return False
    if requirements.resolved_causal is not None and config["causal"] != requirements.resolved_causal:
        return False
    if config["compiled"] or config["cuda_graph"] or config["cache"] not in (None, "warm"):
        return False  # there are no options for these, so they must not be mixed with the others
    return all(getattr(requirements, name) in (None, config[name]) for name in SHAPE)


def find_nearest(
    curves_by_config: Iterable[tuple[Mapping[str, Any], Sequence[CostCurve]]], requirements: Requirements
) -> Requirements | None:
    """The requirements with the nearest measured shape, key-value heads and length instead of their own; mode,
    direction, device and machine stay. None if nothing was measured with these."""
    any_shape = replace(requirements, **dict.fromkeys(SHAPE), kv_heads=None)
    candidates = [
        candidate
        for config, curves in curves_by_config
        if matches(config, any_shape) and (requirements.machine or "") in str(config["machine"])
        for candidate in _list_candidates(config, curves, requirements)
    ]
    return min(candidates, key=lambda candidate: candidate[0], default=(0, None))[1]


def _list_candidates(
    config: Mapping[str, Any], curves: Sequence[CostCurve], requirements: Requirements
) -> Iterator[tuple[tuple[float, int, str], Requirements]]:
    """Yield the requirements at each measured length, after a key: their distance, then the most mechanisms."""
    shape = {x: config[x] for x in SHAPE if getattr(requirements, x) is not None}
    kv_heads, wanted = None, requirements.kv_heads
    if wanted and config["heads"] and (measured := {curve.kv_heads for curve in curves if curve.kv_heads}):
        share = wanted * (config["heads"] / requirements.heads if requirements.heads else 1)
        kv_heads = min(measured, key=lambda heads: (abs(math.log(heads / share)), heads))
    lengths = Counter(point.length for x in curves if kv_heads in (None, x.kv_heads) for point in x.points)
    for length, count in lengths.items():
        measured_at = replace(requirements, **shape, kv_heads=kv_heads, seq_len=length)
        pairs = ((getattr(requirements, name), getattr(measured_at, name)) for name in (*shape, "seq_len"))
        yield (round(sum(_compute_distance(*pair) for pair in pairs), 6), -count, str(config)), measured_at


def _compute_distance(value: Any, other: Any) -> float:
    """In factors of two; a constant between dtypes, and to a size that is unknown."""
    is_size = isinstance(value, int) and isinstance(other, int)
    return abs(math.log2(value / other)) if is_size else OTHER * (value != other)
