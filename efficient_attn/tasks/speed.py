"""Speed and memory: what a call of each mechanism costs, timed in turns with its baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from ..bench.config import RESERVE, Cell, Place
from ..bench.planning.request import Asked
from ..bench.task import Guess, Keys, Task
from ..errors import UsageError
from ..results.rows import Record, Row
from ..results.section import Section
from ..units import parse_size

if TYPE_CHECKING:
    from ..bench.case import Case
    from ..bench.measuring.jobs import Prepared
    from ..bench.measuring.workload import Workload
    from ..instruments.roofline import Ceiling

MODES = ("forward", "forward_backward", "prefill", "decode")
AXES = ("threads", "batch", "heads", "kv_heads", "head_dim", "causal", "cache", "compiled", "cuda_graph", "fill")


class SpeedKeys(Keys):
    """memory_budget: a size such as ``16GB``, for which decode rows say the longest context whose state fits it.

    peak_memory: whether a call's bytes are counted; ``measure`` says so.
    """

    memory_budget: Annotated[int, BeforeValidator(lambda value: parse_size(str(value)))] | None = None
    peak_memory: bool = False


def plan(asked: Asked) -> Iterator[tuple[Cell, int | None]]:
    """A cell for each mode and combination of the axes."""
    longest = max(asked.grid["seq_len"])
    for mode, at in product((w for w in asked.words if w in MODES), asked.grid.combine(*AXES, "seq_len")):
        at, steps = dict(at), mode in ("decode", "prefill")
        if steps and at["fill"] != "full":
            raise UsageError(f"{mode}: rows take one step at a time, so fill can only be full, not {at['fill']}")
        if steps and asked.grid.points is not None and len(asked.grid["causal"]) > 1:
            raise UsageError(f"{mode}: causal by nature, so a design cannot vary causal")
        if steps and not at["causal"] and len(asked.grid["causal"]) > 1:
            continue  # decoding is causal by nature: one of the two is enough
        at["causal"], kv_heads = at["causal"] or steps, at.pop("kv_heads")
        decode, counted = mode == "decode", mode in ("forward", "forward_backward")
        place = Place(mode=mode, max_len=longest + (RESERVE if decode else 0), **at)
        yield (
            asked.cell(
                place,
                memory_budget=asked.keys.memory_budget if decode else None,
                peak_memory=counted and (asked.keys.peak_memory or "peak_memory" in asked.words),
            ),
            kv_heads,
        )


def judge(case: Case, row: Row, at: Callable[..., None]) -> Record | Prepared:
    """Prove a case right, count its memory, find its pace."""
    from ..bench.measuring.preparation import prepare

    keys = case.keys
    return prepare(case, row, at, peak_memory=keys.peak_memory, memory_budget=keys.memory_budget)


def make_workload(case: Case) -> Workload:
    from ..bench.measuring.workload import Workload

    return Workload(case)


def guess(case: Case, best: Ceiling) -> Guess:
    from ..bench.planning.cost_estimate import guess_call

    return guess_call(case, best)


SPEED = Task(
    name="speed",
    words=(*MODES, "peak_memory"),
    keys=SpeedKeys,
    plan=plan,
    judge=judge,
    work=make_workload,
    guess=guess,
    sections=(
        Section(name="speed", task="speed", title="Speed and memory", layout="speed", x="seq_len", y="latency_ms"),
        Section(name="decoding", task="speed", title="Decoding", layout="decoding", x="seq_len", y="latency_ms"),
    ),
)
