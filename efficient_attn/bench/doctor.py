"""How well this machine can measure at the moment, and what would help."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ..instruments.ceilings import ceiling, timer_overhead, timer_resolution
from ..instruments.disturbance import OTHERS, Watch
from ..instruments.environment import available_memory, cgroups, load, machine, software
from ..instruments.environment.facts import Unknown, known
from ..instruments.environment.gpu import gpus, sensors
from ..instruments.memory import canary
from ..instruments.timing import BLOCK_S
from ..results.exchange import round_values
from ..results.stats import MARGIN, Estimate, paired_ratio, quantile_t, verdict
from .case import make_case
from .cell import measure
from .conditions import Conditions
from .expect import guess_call
from .place import Cell, Effort, Place
from .prepare import prepare
from .task import Task
from .workload import Workload

Level = Literal["ok", "note", "problem"]
ROUNDS = 8  # of an ordinary run, for which the noise floor is given
DTYPE = {"cuda": "bfloat16"}  # of the trials; elsewhere float32
# a call timed against itself, as calls are timed in any run
NOISE = Task(name="noise", words=(), plan=lambda asked: (), judge=prepare, guess=guess_call, work=Workload)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at. note: worth knowing; problem: it spoils measurements. numbers: in SI units."""

    topic: str
    said: str
    level: Level = "ok"
    advice: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """All findings; healthy when none of them is a problem."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return all(f.level != "problem" for f in self.findings)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, the problems' first."""
        ordered = sorted(self.findings, key=lambda f: f.level != "problem")
        return tuple(f.advice for f in ordered if f.advice)

    def lines(self) -> list[str]:
        """For people: a line a finding, advice below it, the verdict last."""
        marks = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}
        out: list[str] = []
        for f in self.findings:
            out.append(f"{marks[f.level]}  {f.topic:10}  {f.said}")
            out += [f"{'':21}-> {f.advice}"] if f.advice else []
        wrong = [f.topic for f in self.findings if f.level == "problem"]
        return [*out, f"Not ready to measure: {', '.join(wrong)}." if wrong else "Ready to measure."]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"healthy": self.healthy, "advice": list(self.advice), "findings": [asdict(f) for f in self.findings]}


def diagnose(*, quick: bool = False, threads: int | None = None, device: str = "cpu") -> Diagnosis:
    """Look at the machine and try it: about 6 seconds, with ``quick`` 3. threads: as many as will be measured with."""
    count = threads or torch.get_num_threads()
    found = [_threads(count), _frequency(), _virtualisation(), _memory(), _clock()]
    if device == "cuda":
        found.append(_gpu())
    if device == "cpu" or torch.cuda.is_available():
        found += [_canary(device), *_rates(device, count), _noise(device, threads, quick)]
    return Diagnosis(tuple(found))


# -- what the system says ------------------------------------------------------------------------------------------


def _threads(count: int) -> Finding:
    usable, quota = machine.usable_cores(), known(cgroups.cpu_quota())
    limit = min(usable, quota or usable)
    bound = software.variables().get("OMP_NUM_THREADS")
    said = f"{count} of {usable} usable cores (of {os.cpu_count()})"
    said += f", quota {quota:g}" if quota else ""
    said += f", OMP_NUM_THREADS={bound}" if bound else ""
    numbers = {"threads": count, "usable_cores": usable, "quota": quota, "affinity": known(machine.affinity())}
    if count > limit:
        advice = (
            f"{count} threads exceed the {limit:g} cores that may be used: set OMP_NUM_THREADS={max(1, int(limit))}"
        )
        return Finding(topic="threads", said=said, level="problem", advice=advice, numbers=numbers)
    return Finding(topic="threads", said=said, numbers=numbers)


def _frequency() -> Finding:
    facts = machine.frequency()
    governor, turbo = known(facts["governor"]), known(facts["turbo"])
    said = f"governor {governor or 'not told'}, turbo {_yes(turbo)}"
    advice = None
    if governor not in (None, "performance"):
        advice = f"governor is {governor}: set performance (cpupower frequency-set -g performance)"
    elif turbo:
        advice = "turbo is on: the clock falls when the processor gets warm; expect the first minute to be faster"
    numbers = {"governor": governor, "turbo": turbo, "mhz": known(facts["mhz"])}
    return Finding(topic="frequency", said=said, level="note" if advice else "ok", advice=advice, numbers=numbers)


def _virtualisation() -> Finding:
    facts = machine.virtualisation()
    kind, container, hypervisor = known(facts["kind"]), facts["container"], known(facts["hypervisor"])
    said = f"hypervisor {kind or _yes(hypervisor)}, container {container or 'no'}"
    advice = "hypervisor present: expect steal; repeat at another time before believing small differences"
    numbers = {"hypervisor": hypervisor, "kind": kind, "container": container}
    if hypervisor:
        return Finding(topic="virtual", said=said, level="note", advice=advice, numbers=numbers)
    return Finding(topic="virtual", said=said, numbers=numbers)


def _yes(answer: bool | None) -> str:
    return "not told" if answer is None else "yes" if answer else "no"


def _memory() -> Finding:
    total, free, limit = machine.memory_total(), available_memory(), known(cgroups.memory_limit())
    said = f"{_gib(free)} available of {_gib(total)}" + (f", memory limit {_gib(limit)}" if limit else "")
    numbers = {"total_bytes": total, "available_bytes": free, "limit_bytes": limit}
    if free is not None and free < 2**30:
        return Finding(
            topic="memory", said=said, level="problem", advice="free some memory: at least 1 GiB", numbers=numbers
        )
    return Finding(topic="memory", said=said, numbers=numbers)


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.3g} GiB"


def _gpu() -> Finding:
    names = gpus()
    if not names:
        return Finding(topic="gpu", said="no CUDA device on this machine", level="problem", advice="use --device cpu")
    now = sensors()
    said = ", ".join(f"{name} {value}" for name, value in now.items() if not isinstance(value, Unknown))
    untold = next((value.reason for value in now.values() if isinstance(value, Unknown)), None)
    return Finding(
        topic="gpu",
        said=f"{names[0]}: {said or 'no sensors'}",
        level="note" if untold else "ok",
        advice=f"clock, power and temperature are not told: {untold}" if untold else None,
        numbers={name: known(value) for name, value in now.items()},
    )


# -- what trials say -----------------------------------------------------------------------------------------------


def _clock() -> Finding:
    overhead, resolution = timer_overhead(), timer_resolution()
    coarse = max(overhead, resolution) > BLOCK_S / 1000
    return Finding(
        topic="clock",
        said=f"reading it takes {overhead * 1e9:.0f} ns, its steps are {resolution * 1e9:.0f} ns",
        level="problem" if coarse else "ok",
        advice="the clock is too coarse for passes of 2 ms: check the system's clock source" if coarse else None,
        numbers={"overhead_s": overhead, "resolution_s": resolution},
    )


def _canary(device: str) -> Finding:
    told = canary(device)
    if told["ok"] is None:
        return Finding(topic="counting", said=str(told["reason"]), level="note", numbers=told)
    said = f"{told['measured_bytes']} bytes counted of {told['expected_bytes']} allocated"
    if told["ok"]:
        return Finding(topic="counting", said=said, numbers=told)
    advice = "do not use the memory columns of this machine"
    return Finding(topic="counting", said=said, level="problem", advice=advice, numbers=told)


def _rates(device: str, threads: int) -> Iterator[Finding]:
    """The machine's best rates, and what else it was doing while they were measured."""
    watch = Watch()
    best = ceiling(device, DTYPE.get(device, "float32"), threads)
    seen = watch.lap()
    arithmetic, memory = best.gemm_flops_per_s, best.bytes_per_s
    said = f"{arithmetic / 1e9:.4g} GFLOP/s in a matrix product, {memory / 1e9:.3g} GB/s from memory"
    said += "".join(f", {cache.bytes_per_s / 1e9:.3g} from {cache.name}" for cache in best.caches[-1:])
    yield Finding(topic="rates", said=said, numbers=asdict(best))
    reason = seen.reason(threads if device == "cpu" else None)
    busy = seen.others_cores is not None and seen.others_cores > OTHERS
    advice = f"another program uses {seen.others_cores:.1f} cores: stop it" if busy else "wait for a quieter moment"
    averages = load()
    quiet = "nothing else ran" + (f", load {averages[0]:.2f}" if averages else "")
    yield Finding(
        topic="quiet",
        said=reason or quiet,
        level="problem" if reason else "ok",
        advice=advice if reason else None,
        numbers=asdict(seen),
    )


class Noise(NamedTuple):
    """Two runs of the same thing: their ratio with its interval, the spread of a round's ratio (in logarithms)."""

    ratio: Estimate
    spread: float

    @property
    def floor(self) -> float:
        """The smallest difference that an ordinary run can tell from none, as a share."""
        return max(MARGIN, math.expm1(quantile_t(0.975, ROUNDS - 1) * self.spread / math.sqrt(ROUNDS)))


def _noise(device: str, threads: int | None, quick: bool) -> Finding:
    found = _aa(device, threads, quick)
    if isinstance(found, str):
        return Finding(topic="noise", said=f"not measured: {found}", level="problem", numbers={})
    ratio, low, high = found.ratio
    if low is None or high is None:
        return Finding(topic="noise", said="not measured: too few rounds", level="problem")
    alarm = verdict(low, high) in ("faster", "slower")
    loud = found.floor > 0.1
    advice = "measure at a quieter time, or with more rounds" if alarm or loud else None
    said = f"the same twice: ratio {ratio:.3f} ({low:.3f} to {high:.3f}), a round's spread {found.spread:.1%}"
    return Finding(
        topic="noise",
        said=f"{said}; differences below {found.floor:.1%} cannot be told from noise here",
        level="problem" if alarm or loud else "ok",
        advice=advice,
        numbers={"ratio": ratio, "low": low, "high": high, "round_spread": found.spread, "floor": found.floor},
    )


def _aa(device: str, threads: int | None, quick: bool) -> Noise | str:
    """Exact attention against itself, measured as every cell is; or why that failed."""
    rounds, processes = (6, 2) if quick else (16, 4)
    # fmt: off
    place = Place(
        mode="forward", device=device, dtype=DTYPE.get(device, "float32"), threads=threads,
        heads=4, seq_len=512, head_dim=64, max_len=512,
    )
    # fmt: on
    effort = Effort(rounds=rounds, max_rounds=rounds, processes=processes, half_width=MARGIN, budget_s=30)
    target = f"{__name__}:NOISE"
    cell = Cell(suite="doctor", part="noise", task="noise", target=target, place=place, effort=effort, baseline="full")
    backend = make_case(cell, "full", None).create().backend
    twice = [make_case(cell, variant, None) for variant in ("full", f"full:backend={backend}")]
    records = measure(cell, twice, Conditions(timeout_s=120))
    if failed := next((r.row.reason for r in records if r.row.status != "ok"), None):
        return failed
    first, second = (round_values(r) for r in records)
    ratio = paired_ratio(first, second, records[0].samples["process"])
    logs = [math.log(a / b) for a, b in zip(first, second, strict=False)]
    return Noise(ratio, float(np.std(logs, ddof=1)))
