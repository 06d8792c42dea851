"""The requirements of a recommendation, and the measured configurations that satisfy them or come nearest to them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ... import units
from ...errors import UsageError
from ...variants import BACKEND_DTYPES
from .. import formatting
from ..gather import Frame
from .cost_curves import CostCurve

Mode = Literal["forward", "forward_backward", "prefill", "decode"]
MODES: tuple[Mode, ...] = get_args(Mode)
SHAPE = ("dtype", "batch", "heads", "head_dim", "threads")  # optional: by default those with most timings
OTHER = 1.0  # distance of another dtype, or to an unknown size: that of half the length or heads
DESCRIPTIONS = {
    "heads": "{} heads",
    "kv_heads": "{} key-value heads",
    "batch": "{} rows",
    "threads": "{} threads",
    "head_dim": "heads of {}",
    "dtype": "{}",
    "max_error": "error at most {:g}",
    "max_ppl_ratio": "perplexity at most {:g} times",
}


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """A configuration, and bounds on quality and cost.

    seq_len: tokens of a call; for ``decode``, tokens in the state. causal: None for either; decoding is always causal.
    kv_heads: of the model, by default the number of heads. dtype, batch, heads, head_dim, threads, machine (a part of
    its name): by default those with most timings.

    max_error: relative error of the output against exact attention, on a model's activations. max_ppl_ratio: perplexity
    of a trained model with swapped attention over its original one. min_accuracy: by task, of models trained with the
    mechanism. memory: peak bytes of a call (of the state for ``decode``). latency_ms: of a call.
    """

    seq_len: int
    mode: Mode = "forward"
    causal: bool | None = None
    device: str = "cpu"
    kv_heads: int | None = None
    dtype: str | None = None
    batch: int | None = None
    heads: int | None = None
    head_dim: int | None = None
    threads: int | None = None
    machine: str | None = None
    max_error: float | None = None
    max_ppl_ratio: float | None = None
    min_accuracy: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory: int | None = None
    latency_ms: float | None = None

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise UsageError(f"recommend: seq_len must be at least 1, got {self.seq_len}")
        if self.mode not in MODES:
            raise UsageError(f"recommend: mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.machine == "":
            raise UsageError("recommend: --machine must not be empty: give a part of a machine's name")
        if self.mode in ("decode", "prefill") and self.causal is False:
            raise UsageError(f"recommend: {self.mode} is always causal; remove --no-causal, or use --mode forward")
        if self.kv_heads and self.heads and self.heads % self.kv_heads:
            raise UsageError(f"recommend: {self.kv_heads} key-value heads do not divide {self.heads} heads")
        if self.max_error is not None and not self.max_error >= 0:
            raise UsageError(f"recommend: --max-error must be at least 0, got {self.max_error:g}")
        if self.max_ppl_ratio is not None and not self.max_ppl_ratio >= 1:
            hint = f"got {self.max_ppl_ratio:g}; 1.05 allows 5% more"
            raise UsageError(f"recommend: --max-ppl-ratio must be at least 1 (the model's own perplexity), {hint}")
        for task, least in self.min_accuracy.items():
            if not 0 <= least <= 1:
                raise UsageError(f"recommend: --min-accuracy {task}={least:g} must be between 0 and 1")

    @property
    def resolved_causal(self) -> bool | None:
        """Whether calls are causal; None for either."""
        return True if self.mode in ("decode", "prefill") else self.causal

    @property
    def has_quality_bounds(self) -> bool:
        """Whether there is a bound on error, perplexity or accuracy."""
        return self.max_error is not None or self.max_ppl_ratio is not None or bool(self.min_accuracy)

    def describe(self) -> str:
        """``decode at 16,384, causal, on cpu, error at most 0.1``."""
        parts = [f"{self.mode} at {self.seq_len:,}", formatting.format_direction(self.resolved_causal)]
        parts.append(f"on {self.device}")
        requirements = {name: getattr(self, name) for name in DESCRIPTIONS}
        parts += [DESCRIPTIONS[name].format(value) for name, value in requirements.items() if value is not None]
        parts += [f"{task} at least {units.percent(least)}" for task, least in self.min_accuracy.items()]
        parts += [f"memory at most {units.size(self.memory)}"] if self.memory is not None else []
        parts += [f"at most {units.duration(self.latency_ms)} per call"] if self.latency_ms is not None else []
        return ", ".join(filter(None, parts))

    def as_data(self) -> dict[str, Any]:
        """The requirements that were given, as data."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v not in (None, {})}


# -- configurations that have these properties ---------------------------------------------------------------------


def matches(config: Mapping[str, Any], requirements: Requirements) -> bool:
    """Whether a configuration has all properties that the requirements fix."""
    if config["compiled"] or config["cuda_graph"] or config["cache"] not in (None, "warm"):
        return False  # there are no options for these, so they must not be mixed with the others
    fixed = {name: getattr(requirements, name) for name in ("mode", "device", *SHAPE)}
    fixed["causal"] = requirements.resolved_causal
    return all(value in (None, config[name]) for name, value in fixed.items())


def filter_uses(rows: Frame, requirements: Requirements) -> Frame:
    """The rows whose mode, device and direction are those of the requirements."""
    is_use = (rows["mode"] == requirements.mode) & (rows["device"] == requirements.device)
    causal = requirements.resolved_causal
    return rows[is_use if causal is None else is_use & (rows["causal"] == causal)]


def find_dtype_refusal(label: str, dtype: str | None) -> str:
    """Why a mechanism's backend does not run in a dtype; empty if it does, or if its dtypes are not declared."""
    pairs = ((name, option) for name, options in formatting.split_label(label) for option in options)
    dtypes = next((BACKEND_DTYPES[pair] for pair in pairs if pair in BACKEND_DTYPES), (str(dtype),))
    return "" if dtype in (None, *dtypes) else f"runs in {formatting.join_words(dtypes)} only, not in {dtype}"


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
