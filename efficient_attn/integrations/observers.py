"""Observers of the attention that models compute with mechanisms: counts, times and inputs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import UsageError

T = TypeVar("T")


@dataclass
class Meter:
    """Counts calls of mechanisms. calls: by the model's layer, its number or its module. seconds: in total."""

    calls: Counter[int | nn.Module] = field(default_factory=Counter)
    seconds: float = 0.0

    def check(self, model: Any, spec: str) -> None:
        """Raise `UsageError` for a model if not all of its layers called the mechanism."""
        layers = model.config.get_text_config().num_hidden_layers
        if len(self.calls) < layers:
            counted = f"the model {type(model).__name__} called {spec} in {len(self.calls)} of its {layers} layers"
            raise UsageError(f"{counted}: its attention does not go through transformers' AttentionInterface")


# called with a layer's number, and the inputs of its attention
Listener = Callable[[int, Tensor, Tensor, Tensor], None]

_meters: list[Meter] = []
_listeners: list[Listener] = []


def listen(listener: Listener) -> AbstractContextManager[Listener]:
    """Call a function with each layer's number and its q, k and v, after positions and scaled for 1 / sqrt(D)."""
    return _append(_listeners, listener)


def watch() -> AbstractContextManager[Meter]:
    """Count the calls of mechanisms, and their CPU wall time, within this context."""
    return _append(_meters, Meter())


def report_inputs(layer: int | None, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Tell all listeners of a call, but not within a compiled graph."""
    if torch.compiler.is_compiling():
        return
    for listener in _listeners:
        listener(layer or 0, query, key, value)


def report_call(layer: int | nn.Module, start: float | None) -> None:
    """Count a call that began at a time of `time.perf_counter`, None within a compiled graph."""
    if start is None:
        return
    for meter in _meters:
        meter.calls[layer] += 1
        meter.seconds += time.perf_counter() - start


@contextmanager
def _append(entries: list[T], entry: T) -> Iterator[T]:
    """Keep an entry in a list within this context."""
    entries.append(entry)
    try:
        yield entry
    finally:
        entries[:] = [x for x in entries if x is not entry]
