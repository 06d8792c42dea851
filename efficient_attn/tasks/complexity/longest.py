"""Longest: the longest sequence with which a layer, or a model of several, can be trained in so much memory; as it is,
and with what each block keeps for its gradients worked out again (activation checkpointing)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from ...bench.config import Cell, Place
from ...bench.planning.request import Asked
from ...bench.task import Guess, Keys, Task
from ...results.rows import Record, Row
from ...results.section import Column, Section
from ...units import parse_size

if TYPE_CHECKING:
    from torch import Tensor

    from ...bench.case import Case
    from ...instruments.roofline import Ceiling
    from ...models.stacks import Encoder

CLOSE = 0.95  # of the memory: a length that takes as much is the longest but for a twentieth
TRIES = 8
AIM = 0.98  # of the memory: where the next length is looked for
STEP = 16  # lengths are multiples of it
FIRST = 256


class LongestKeys(Keys):
    """memory: that a step of training may hold above the weights and the input: activations and gradients. layers: of
    the model, each with a feed-forward part. checkpointed: whether blocks keep nothing but what they read. most_s: a
    step that takes longer ends the search."""

    memory: Annotated[int, BeforeValidator(lambda value: parse_size(str(value)))] = 256 * 10**6
    layers: tuple[Annotated[int, Field(ge=1, strict=True)], ...] = (1, 6)
    checkpointed: tuple[bool, ...] = (False, True)
    most_s: Annotated[float, Field(gt=0)] = 30.0


def plan(asked: Asked) -> Iterator[tuple[Cell, int | None]]:
    """A cell for each depth, with and without checkpoints; of lengths the longest is how far it looks."""
    longest, keys = max(asked.grid["seq_len"]), asked.keys
    given = {"memory": keys.memory, "most_s": keys.most_s}
    axes = asked.grid.combine("threads", "batch", "heads", "head_dim", "causal")
    for layers, checkpointed, at in product(keys.layers, keys.checkpointed, axes):
        inputs = f"{layers} layer{'s' * (layers > 1)}{', checkpointed' * checkpointed}"
        place = Place(seq_len=longest, max_len=longest, inputs=inputs, **at)
        yield asked.cell(place, layers=(layers,), checkpointed=(checkpointed,), **given), None


def judge(case: Case, row: Row, at: Callable[..., None]) -> Record:
    """Search for the longest length whose step fits."""
    from ...bench.measuring.jobs import MEMORY

    keys: LongestKeys = case.keys
    tried: dict[int, tuple[int, float]] = {}

    def try_length(length: int) -> int:
        at(MEMORY)
        tried[length] = count_step(case, length)
        return tried[length][0]

    low, ended = search(try_length, lambda n: tried[n][1], case.cell.place.seq_len, keys.memory, keys.most_s)
    row.mode, row.seq_len, row.kv_len = "forward_backward", low, low
    if low:
        row.peak_memory_bytes, row.latency_ms = tried[low][0], 1e3 * tried[low][1]
    row.extra = {"longest": low, "memory": keys.memory, "layers": keys.layers[0], "checkpointed": keys.checkpointed[0]}
    row.extra["ended"] = ended
    return Record(row, {"lengths": sorted(tried), "bytes": [tried[n][0] for n in sorted(tried)]})


def search(
    take: Callable[[int], int], last: Callable[[int], float], most: int, memory: int, most_s: float
) -> tuple[int, str | None]:
    """The longest length up to ``most`` that was found to fit, 0 if none, and what ended the search before the memory
    was used up.

    take: the bytes at a length; last: the seconds that it took. Each length is where a line, or a power law, through
    two that were tried meets the memory; where that does not end it, the middle between what fits and what does not.
    """
    length, low, high = min(FIRST, most), 0, most + STEP
    found: list[tuple[int, int]] = []
    between = 0  # tries since there was a length that fits, and one that does not
    ended: str | None = f"no more than {TRIES} lengths were tried"
    for _ in range(TRIES):
        taken = take(length)
        found.append((length, taken))
        low, high = (max(low, length), high) if taken <= memory else (low, min(high, length))
        if CLOSE * memory <= taken <= memory or low + STEP >= high:
            ended = f"no more than {most:,} positions were tried" if low == most else None
            break
        between += high <= most and low > 0
        aim = int(_aim(found, AIM * memory, memory)) if between < 3 or between % 2 == 0 else 0
        if taken <= memory:
            affordable = int(length * (most_s / last(length)) ** 0.5)
            if affordable < min(aim, length + STEP):
                return low, f"a longer step would take more than {most_s:g} s"
            aim = min(aim, max(affordable, length + STEP))
        aim = most if aim >= most < high else aim // STEP * STEP
        if not low < aim < high:  # the middle, but never far into what is not known
            aim = (low + high) // 2 // STEP * STEP if high <= most else low + STEP
        length = aim
        if length in (low, high):
            ended = None
            break
    return low, ended if low else f"{high:,} positions take more already"


def _aim(found: list[tuple[int, int]], wanted: float, memory: int) -> float:
    """Where so many bytes are reached, from lengths and what they took.

    Of one alone growth counts as quadratic. Beyond two a line is too far where growth bends up, and a power law where
    there are bytes that do not grow: the nearer of them counts; between two, for the same reason, the later."""
    if len(found) < 2:
        (length, taken), *_ = found
        return length * (wanted / taken) ** 0.5
    low, high = ([p for p in found if (p[1] <= memory) == fits] for fits in (True, False))
    (a, x), (b, y) = sorted(found[-2:]) if not (low and high) else (max(low), min(high))
    if y <= x:  # no growth
        return 2.0 * b if low else a / 2
    line = a + (b - a) * (wanted - x) / (y - x)
    power = a * (wanted / x) ** min(20.0, math.log(b / a) / math.log(y / x))
    return max(line, power) if low and high else min(line, power)


def count_step(case: Case, length: int) -> tuple[int, float]:
    """What a warm step of training holds at its most, above the weights and the input, and the seconds it takes."""
    from time import perf_counter

    import torch

    from ...contract.mask import Mask
    from ...errors import UnsupportedError
    from ...instruments.memory import training_footprint

    times: list[float] = []
    model, place = make_model(case, length), case.cell.place
    x = torch.randn(place.batch, length, model.config.d_model, dtype=getattr(torch, place.dtype), device=place.device)
    sources = [x.requires_grad_(), *model.parameters()]

    def forward() -> Tensor:
        times.append(perf_counter())
        return model(x, Mask(causal=place.causal))

    def backward(out: Tensor) -> object:
        found = torch.autograd.grad(out, sources, torch.ones_like(out), allow_unused=True)
        times.append(perf_counter())
        return found

    found = training_footprint(forward, backward, device=place.device)
    if found.peak is None:
        raise UnsupportedError(found.reason or "memory cannot be counted here")
    return found.peak, times[-1] - times[-2]


def make_model(case: Case, length: int) -> Encoder:
    """The model, or one block of it, for a length."""
    import torch

    from ...models.config import Config
    from ...models.stacks import Encoder

    place, keys = case.cell.place, case.keys
    config = Config(
        d_model=place.heads * place.head_dim,
        heads=place.heads,
        kv_heads=case.kv_heads,
        layers=keys.layers[0],
        attention=case.variant,
        positions=None,
        max_len=length,
        checkpointed=keys.checkpointed[0],
        seed=case.cell.effort.seed,
    )
    return Encoder(config).to(device=place.device, dtype=getattr(torch, place.dtype))


def guess(case: Case, best: Ceiling) -> Guess:
    """Some steps at lengths below the one that memory allows, of which about as many bytes are kept a number."""
    from ...bench.planning.cost_estimate import CALLS, OTHERWISE

    place, keys = case.cell.place, case.keys
    width, layers = place.heads * place.head_dim, keys.layers[0]
    kept = (4 if keys.checkpointed[0] else 80) * layers + 80
    length = min(place.seq_len, keys.memory // (width * kept))
    attn = case.create()
    work = layers * (24 * length * width**2 + 4 * width * attn.growth.cost(length, length, place.causal))
    seconds = min(2 * keys.most_s, 2 * 3.5 * place.batch * work / best.gemm_flops_per_s / OTHERWISE)
    return Guess(4 * seconds / CALLS, 0, 2 * keys.memory)


LONGEST = Task(
    name="longest",
    words=("longest",),
    keys=LongestKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    columns={
        "longest": "positions of the longest sequence whose step of training fits",
        "memory": "bytes that it may take above weights and input",
        "layers": "of the model",
        "checkpointed": "whether blocks keep only what they read",
        "ended": "why the search went no further",
    },
    sections=(
        Section(
            name="longest",
            task="longest",
            title="Longest sequence in training",
            sentences=(
                "The longest sequence with which a step of training, forward and backward, fits into so much memory "
                "above the weights and the input, within a twentieth. 'Checkpointed': blocks keep only what they read, "
                "and work the rest out again for the gradients.",
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
