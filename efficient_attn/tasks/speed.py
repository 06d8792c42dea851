"""Speed and memory: the cost of a call of each mechanism, timed interleaved with its baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from ..bench.case_config import MAX_DECODE_STEPS, CaseConfig, Group
from ..bench.planning.request import TaskRequest
from ..bench.task import Guess, Keys, Task
from ..errors import UsageError
from ..results.rows import Record, Row
from ..results.section import Section
from ..units import parse_size

if TYPE_CHECKING:
    from ..bench.case import Case
    from ..bench.measuring.prepared_case import PreparedCase
    from ..bench.measuring.workload import Workload
    from ..instruments.roofline import Roofline

MODES = ("forward", "forward_backward", "prefill", "decode")
AXES = ("threads", "batch", "heads", "kv_heads", "head_dim", "causal", "cache", "compiled", "cuda_graph", "fill")


class SpeedKeys(Keys):
    """memory_budget: a size such as ``16GB``, for which decode rows report the longest context whose state fits.
    peak_memory: whether a call's bytes are counted, which ``measure`` sets. process_memory: whether memory is also
    measured in a new process, which the plan sets at one of the longest configurations."""

    memory_budget: Annotated[int, BeforeValidator(lambda value: parse_size(str(value)))] | None = None
    peak_memory: bool = False
    process_memory: bool = Field(default=False, exclude=True)


def plan(request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each mode and combination of the axes."""
    planned = list(_list_configs(request))
    cross_checked = _choose_cross_checked([config for config, _, counts_memory in planned if counts_memory])
    for config, kv_heads, counts_memory in planned:
        decode = config.mode == "decode"
        keys: dict[str, Any] = {
            "memory_budget": request.keys.memory_budget if decode else None,
            "peak_memory": counts_memory and not decode,
        }
        if config in cross_checked:
            keys["process_memory"] = True
        yield request.make_group(config, **keys), kv_heads


def _list_configs(request: TaskRequest) -> Iterator[tuple[CaseConfig, int | None, bool]]:
    """Every configuration with its number of key-value heads, and whether its memory is counted."""
    longest = max(request.grid["seq_len"])
    counts_peak = request.keys.peak_memory or "peak_memory" in request.words
    modes = [word for word in request.words if word in MODES]
    for mode, point in product(modes, request.grid.combine(*AXES, "seq_len")):
        point, is_stepwise = dict(point), mode in ("decode", "prefill")
        if is_stepwise and point["fill"] != "full":
            raise UsageError(f"{mode}: rows decode one step at a time, so fill can only be full, not {point['fill']}")
        if is_stepwise and request.grid.points is not None and len(request.grid["causal"]) > 1:
            raise UsageError(f"{mode}: always causal, so a design cannot vary causal")
        if is_stepwise and not point["causal"] and len(request.grid["causal"]) > 1:
            continue  # decoding is always causal
        point["causal"], kv_heads = point["causal"] or is_stepwise, point.pop("kv_heads")
        decode = mode == "decode"
        config = CaseConfig(mode=mode, max_len=longest + (MAX_DECODE_STEPS if decode else 0), **point)
        yield config, kv_heads, decode or (counts_peak and mode in ("forward", "forward_backward"))


def _choose_cross_checked(configs: list[CaseConfig]) -> set[CaseConfig]:
    """For each mode and dtype on the CPU, the configuration whose memory is also measured in a new process: the longest
    one, because differences of short ones are too small to be seen."""
    chosen: dict[tuple[str | None, str], CaseConfig] = {}
    for config in sorted(configs, key=lambda c: (c.seq_len, c.batch * c.heads), reverse=True):
        if config.device == "cpu":
            chosen.setdefault((config.mode, config.dtype), config)
    return set(chosen.values())


def judge(case: Case, row: Row, report_stage: Callable[..., None]) -> Record | PreparedCase:
    """Verify a case, count its memory, and calibrate it."""
    from ..bench.measuring.preparation import prepare_case

    keys = case.keys
    return prepare_case(
        case,
        row,
        report_stage,
        peak_memory=keys.peak_memory,
        memory_budget=keys.memory_budget,
        process_memory=keys.process_memory,
    )


def make_workload(case: Case) -> Workload:
    """The workload of a timed case."""
    from ..bench.measuring.workload import Workload

    return Workload(case)


def guess(case: Case, best: Roofline) -> Guess:
    """The expected time and memory of a case."""
    from ..bench.planning.cost_estimate import estimate_call

    return estimate_call(case, best)


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
