"""The requirements of a recommendation: a configuration, and bounds on cost and quality."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ... import units
from ...errors import UsageError
from .. import formatting

Mode = Literal["forward", "forward_backward", "prefill", "decode"]
MODES: tuple[Mode, ...] = get_args(Mode)
SHAPE = ("dtype", "batch", "heads", "head_dim", "threads")  # optional: by default those with most timings


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
        parts = [f"{self.mode} at {self.seq_len:,}"]
        parts += list(filter(None, [formatting.format_direction(self.resolved_causal)]))
        parts += [f"on {self.device}"]
        shape = {"heads": "heads", "kv_heads": "key-value heads", "batch": "rows", "threads": "threads"}
        parts += [f"{getattr(self, name)} {text}" for name, text in shape.items() if getattr(self, name)]
        parts += [f"heads of {self.head_dim}"] if self.head_dim else []
        parts += [self.dtype] if self.dtype else []
        parts += [f"error at most {self.max_error:g}"] if self.max_error is not None else []
        parts += [f"perplexity at most {self.max_ppl_ratio:g} times"] if self.max_ppl_ratio is not None else []
        parts += [f"{task} at least {units.percent(least)}" for task, least in self.min_accuracy.items()]
        parts += [f"memory at most {units.size(self.memory)}"] if self.memory is not None else []
        parts += [f"at most {units.duration(self.latency_ms)} per call"] if self.latency_ms is not None else []
        return ", ".join(parts)

    def as_data(self) -> dict[str, Any]:
        """The requirements that were given, as data."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v not in (None, {})}
