"""Longest: the longest sequence with which a model can be trained in a given memory, with or without activation
checkpointing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from ...bench.case_config import CaseConfig, Group
from ...bench.planning.request import TaskRequest
from ...bench.planning.suite_schema import Count
from ...bench.task import Guess, Keys, Task
from ...results.rows import Record, Row
from ...results.section import Column, Section
from ...units import parse_size

if TYPE_CHECKING:
    from torch import Tensor

    from ...bench.case import Case
    from ...instruments.roofline import Roofline
    from ...models.stacks import Encoder

MIN_MEMORY_SHARE = 0.95  # share of the memory from which a length counts as the longest
MAX_TRIES = 8
TARGET_MEMORY_SHARE = 0.98  # share of the memory that the next length aims at
LENGTH_STEP = 16  # lengths are multiples of it
FIRST_LENGTH = 256


class LongestKeys(Keys):
    """memory: bytes of a training step beyond weights and input, for activations and gradients. layers: of the model,
    each with a feed-forward block. checkpointed: whether blocks store only their inputs. most_s: limit of a step."""

    memory: Annotated[int, BeforeValidator(lambda value: parse_size(str(value)))] = 256 * 10**6
    layers: tuple[Count, ...] = (1, 6)
    checkpointed: tuple[bool, ...] = (False, True)
    most_s: Annotated[float, Field(gt=0)] = 30.0


def plan(request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each depth, with and without checkpointing; the longest given length limits the search."""
    longest, keys = max(request.grid["seq_len"]), request.keys
    key_values = {"memory": keys.memory, "most_s": keys.most_s}
    axes = request.grid.combine("threads", "batch", "heads", "head_dim", "causal")
    for layers, checkpointed, point in product(keys.layers, keys.checkpointed, axes):
        inputs = f"{layers} layer{'s' * (layers > 1)}{', checkpointed' * checkpointed}"
        config = CaseConfig(seq_len=longest, max_len=longest, inputs=inputs, **point)
        yield request.make_group(config, layers=(layers,), checkpointed=(checkpointed,), **key_values), None


def judge(case: Case, row: Row, report_stage: Callable[..., None]) -> Record:
    """Search for the longest length whose step fits."""
    from ...bench.measuring.prepared_case import COUNTING_MEMORY

    keys: LongestKeys = case.keys
    measurements: dict[int, tuple[int, float]] = {}

    def measure(length: int) -> tuple[int, float]:
        report_stage(COUNTING_MEMORY)
        measurements[length] = measure_step(case, length)
        return measurements[length]

    longest, stop_reason = search(measure, case.group.config.seq_len, keys.memory, keys.most_s)
    row.mode, row.seq_len, row.kv_len = "forward_backward", longest, longest
    if longest:
        row.peak_memory_bytes, row.latency_ms = measurements[longest][0], 1e3 * measurements[longest][1]
    row.extra = {"longest": longest, "memory": keys.memory, "layers": keys.layers[0]}
    row.extra |= {"checkpointed": keys.checkpointed[0], "ended": stop_reason}
    lengths = sorted(measurements)
    return Record(row, {"lengths": lengths, "bytes": [measurements[n][0] for n in lengths]})


def search(
    measure: Callable[[int], tuple[int, float]], max_length: int, memory: int, most_s: float
) -> tuple[int, str | None]:
    """The longest length up to ``max_length`` that was found to fit, 0 if none, and why the search ended (None if the
    memory is used up). measure: returns the bytes and the seconds of a step at a length. Each length is interpolated or
    extrapolated from those tried before, alternating with bisection."""
    length, low, high = min(FIRST_LENGTH, max_length), 0, max_length + LENGTH_STEP
    measurements: list[tuple[int, int]] = []
    bracketed_tries = 0  # tries since there was a length that fits, and one that does not
    stop_reason: str | None = f"no more than {MAX_TRIES} lengths were tried"
    for _ in range(MAX_TRIES):
        n_bytes, seconds = measure(length)
        measurements.append((length, n_bytes))
        low, high = (max(low, length), high) if n_bytes <= memory else (low, min(high, length))
        if MIN_MEMORY_SHARE * memory <= n_bytes <= memory or low + LENGTH_STEP >= high:
            stop_reason = f"no more than {max_length:,} positions were tried" if low == max_length else None
            break
        bracketed_tries += high <= max_length and low > 0
        interpolates = bracketed_tries < 3 or bracketed_tries % 2 == 0
        target = int(_interpolate_length(measurements, TARGET_MEMORY_SHARE * memory, memory)) if interpolates else 0
        if n_bytes <= memory:
            affordable = int(length * (most_s / seconds) ** 0.5)
            if affordable < min(target, length + LENGTH_STEP):
                return low, f"a longer step would take more than {most_s:g} s"
            target = min(target, max(affordable, length + LENGTH_STEP))
        target = max_length if target >= max_length < high else target // LENGTH_STEP * LENGTH_STEP
        if not low < target < high:  # bisect, or take a small step if no limit is known yet
            target = (low + high) // 2 // LENGTH_STEP * LENGTH_STEP if high <= max_length else low + LENGTH_STEP
        length = target
        if length in (low, high):
            stop_reason = None
            break
    return low, stop_reason if low else f"{high:,} positions need more already"


def _interpolate_length(measurements: list[tuple[int, int]], target_bytes: float, memory: int) -> float:
    """The length at which so many bytes are expected, from the lengths and bytes measured so far.

    From one measurement, by quadratic growth. Beyond two, by a line or a power law, whichever is nearer: the line goes
    too far where growth bends upwards, the power law where some bytes do not grow. Between a length that fits and one
    that does not, by the parabola through the three nearest measurements where there are three, else by the farther
    of line and power law."""
    if len(measurements) < 2:
        (length, n_bytes), *_ = measurements
        return length * (target_bytes / n_bytes) ** 0.5
    low, high = ([p for p in measurements if (p[1] <= memory) == fits] for fits in (True, False))
    (a, x), (b, y) = sorted(measurements[-2:]) if not (low and high) else (max(low), min(high))
    if y <= x:  # no growth
        return 2.0 * b if low else a / 2
    if low and high and len(measurements) > 2:
        nearest = sorted(measurements, key=lambda p: abs(p[1] - target_bytes))[:3]
        lengths, n_bytes = zip(*nearest, strict=True)
        roots = np.roots(np.polyfit(lengths, n_bytes, 2) - [0, 0, target_bytes])
        if between := [float(root.real) for root in roots if abs(root.imag) < 1e-9 and a < root.real < b]:
            return between[0]
    line = a + (b - a) * (target_bytes - x) / (y - x)
    power = a * (target_bytes / x) ** min(20.0, math.log(b / a) / math.log(y / x))
    return max(line, power) if low and high else min(line, power)


def measure_step(case: Case, length: int) -> tuple[int, float]:
    """The peak memory of a warm training step beyond weights and input, and its seconds."""
    from time import perf_counter

    import torch

    from ...contract import Mask
    from ...errors import UnsupportedError
    from ...instruments.memory import measure_footprint

    times: list[float] = []
    model, config = make_model(case, length), case.group.config
    options: dict[str, Any] = {"dtype": getattr(torch, config.dtype), "device": config.device}
    x = torch.randn(config.batch, length, model.config.d_model, **options)
    sources = [x.requires_grad_(), *model.parameters()]

    def forward() -> Tensor:
        times.append(perf_counter())
        return model(x, Mask(causal=config.causal))

    def backward(out: Tensor) -> object:
        gradients = torch.autograd.grad(out, sources, torch.ones_like(out), allow_unused=True)
        times.append(perf_counter())
        return gradients

    footprint = measure_footprint(forward, backward, device=config.device)
    if footprint.peak is None:
        raise UnsupportedError(footprint.reason or "memory cannot be counted here")
    return footprint.peak, times[-1] - times[-2]


def make_model(case: Case, length: int) -> Encoder:
    """The case's model for a length."""
    import torch

    from ...models.config import Config
    from ...models.stacks import Encoder

    config, keys = case.group.config, case.keys
    model_config = Config(
        d_model=config.heads * config.head_dim,
        heads=config.heads,
        kv_heads=case.kv_heads,
        layers=keys.layers[0],
        attention=str(case.variant),
        positions=None,
        max_len=length,
        checkpointed=keys.checkpointed[0],
        seed=case.group.sampling.seed,
    )
    return Encoder(model_config).to(device=config.device, dtype=getattr(torch, config.dtype))


def guess(case: Case, best: Roofline) -> Guess:
    """The estimated cost of some training steps at about the longest length."""
    from ...bench.planning.cost_estimate import CALLS, DEFAULT_EFFICIENCY

    config, keys = case.group.config, case.keys
    width, layers = config.heads * config.head_dim, keys.layers[0]
    numbers_per_feature = (4 if keys.checkpointed[0] else 80) * layers + 80
    length = min(config.seq_len, keys.memory // (width * numbers_per_feature))
    attn = case.create()
    work = layers * (24 * length * width**2 + 4 * width * attn.growth.cost(length, length, config.causal))
    seconds = min(2 * keys.most_s, 2 * 3.5 * config.batch * work / best.gemm_flops_per_s / DEFAULT_EFFICIENCY)
    return Guess(4 * seconds / CALLS, 0, 2 * keys.memory)


LONGEST = Task(
    name="longest",
    words=("longest",),
    keys=LongestKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    columns={
        "longest": "positions of the longest sequence whose training step fits",
        "memory": "bytes available beyond weights and input",
        "layers": "of the model",
        "checkpointed": "whether blocks store only their inputs",
        "ended": "why the search ended",
    },
    sections=(
        Section(
            name="longest",
            task="longest",
            title="Longest sequence in training",
            sentences=(
                "The longest sequence with which a training step, forward and backward, fits into so much memory "
                "beyond the weights and the input, within a twentieth. 'Checkpointed': blocks store only their inputs, "
                "and recompute the rest for the gradients.",
            ),
            columns=(
                Column(name="longest.memory", heading="Memory", unit="bytes"),
                Column(name="longest.longest", heading="Longest", unit="count"),
                Column(name="peak_memory_bytes", heading="Takes", unit="bytes"),
                Column(name="latency_ms", heading="A step, once", unit="time"),
                Column(name="longest.ended", heading="Ended by"),
            ),
        ),
    ),
)
