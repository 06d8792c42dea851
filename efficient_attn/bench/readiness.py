"""Whether the machine is ready to measure, from information that is available immediately."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..instruments.disturbance import MAX_OTHERS_CORES, Disturbance
from ..instruments.environment import cgroups, find_available_memory, machine, software
from ..instruments.environment.readings import value_or_none

Level = Literal["ok", "note", "problem"]
GOOD_GOVERNORS = (None, "performance")  # None: virtual machines often do not report it


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. A note is informative; a problem makes measurements unreliable. numbers: in SI units."""

    topic: str
    message: str
    level: Level = "ok"
    advice: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def make(
        cls, topic: str, message: str, numbers: Mapping[str, Any], advice: str | None, level: Level = "problem"
    ) -> Finding:
        """A finding of this level with advice; a good one without advice."""
        return cls(topic=topic, message=message, level=level if advice else "ok", advice=advice, numbers=numbers)


@dataclass(frozen=True)
class Diagnosis:
    """All findings; healthy if none is a problem."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing prevents a run."""
        return all(f.level != "problem" for f in self.findings)

    @property
    def advice(self) -> tuple[str, ...]:
        """All advice, that for problems first."""
        ordered = sorted(self.findings, key=lambda f: f.level != "problem")
        return tuple(f.advice for f in ordered if f.advice)

    @property
    def warning(self) -> str | None:
        """What makes measurements unreliable, in one line, or None. A power-saving governor counts too."""
        wrong = [f for f in self.findings if f.level == "problem" or f.numbers.get("governor") not in GOOD_GOVERNORS]
        return "; ".join(f.message if f.topic == "quiet" else f.advice or f.message for f in wrong) or None

    def lines(self) -> list[str]:
        """The findings as text, a line each, with advice below them and the verdict last."""
        marks = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}
        out: list[str] = []
        for f in self.findings:
            out.append(f"{marks[f.level]}  {f.topic:10}  {f.message}")
            out += [f"{'':21}-> {f.advice}"] if f.advice else []
        wrong = [f.topic for f in self.findings if f.level == "problem"]
        return [*out, f"Not ready to measure: {', '.join(wrong)}." if wrong else "Ready to measure."]

    def as_json(self) -> dict[str, Any]:
        """The findings as ``doctor --json`` prints them and ``run.json`` records them."""
        findings = [{"topic": f.topic, "said": f.message, **asdict(f)} for f in self.findings]
        for finding in findings:
            del finding["message"]
        return {"healthy": self.healthy, "warning": self.warning, "advice": list(self.advice), "findings": findings}


def check_machine(disturbance: Disturbance | None, threads: int | None) -> Diagnosis:
    """The immediate checks at the start of a run. disturbance: that while the machine was measured.

    threads: those of measurements on the processor; None if there are none.
    """
    findings = [check_frequency(), check_memory()]
    findings += [check_threads(threads)] if threads else []
    findings += [check_load(disturbance, threads)] if disturbance else []
    return Diagnosis(tuple(findings))


def check_threads(count: int) -> Finding:
    """Whether there are enough usable cores for so many threads."""
    usable, quota = machine.count_usable_cores(), value_or_none(cgroups.read_cpu_quota())
    limit = min(usable, quota or usable)
    bound = software.list_variables().get("OMP_NUM_THREADS")
    message = f"{count} of {usable} usable cores (of {os.cpu_count()})"
    message += f", quota {quota:g}" if quota else ""
    message += f", OMP_NUM_THREADS={bound}" if bound else ""
    affinity = value_or_none(machine.read_affinity())
    numbers = {"threads": count, "usable_cores": usable, "quota": quota, "affinity": affinity}
    advice = f"{count} threads exceed the {limit:g} cores that may be used: set OMP_NUM_THREADS={max(1, int(limit))}"
    return Finding.make("threads", message, numbers, advice if count > limit else None)


def check_frequency() -> Finding:
    """The frequency governor and turbo."""
    facts = machine.read_frequency()
    governor, turbo = value_or_none(facts["governor"]), value_or_none(facts["turbo"])
    message = f"governor {governor or 'not reported'}, turbo {_format_bool(turbo)}"
    advice = None
    if governor not in GOOD_GOVERNORS:
        advice = f"governor is {governor}: set performance (cpupower frequency-set -g performance)"
    elif turbo:
        advice = "turbo is on: the clock falls when the processor gets warm; expect the first minute to be faster"
    numbers = {"governor": governor, "turbo": turbo, "mhz": value_or_none(facts["mhz"])}
    return Finding.make("frequency", message, numbers, advice, level="note")


def check_virtualisation() -> Finding:
    """The hypervisor and the container."""
    facts = machine.read_virtualisation()
    kind, container, hypervisor = value_or_none(facts["kind"]), facts["container"], value_or_none(facts["hypervisor"])
    message = f"hypervisor {kind or _format_bool(hypervisor)}, container {container or 'no'}"
    numbers = {"hypervisor": hypervisor, "kind": kind, "container": container}
    advice = "a hypervisor may take processor time away: repeat at another time to confirm small differences"
    return Finding.make("virtual", message, numbers, advice if hypervisor else None, level="note")


def _format_bool(value: bool | None) -> str:
    return "not reported" if value is None else "yes" if value else "no"


def check_memory() -> Finding:
    """The available memory."""
    total, free = machine.read_memory_total(), find_available_memory()
    limit = value_or_none(cgroups.read_memory_limit())
    message = f"{_format_gib(free)} available of {_format_gib(total)}"
    message += f", memory limit {_format_gib(limit)}" if limit else ""
    numbers = {"total_bytes": total, "available_bytes": free, "limit_bytes": limit}
    is_low = free is not None and free < 2**30
    return Finding.make("memory", message, numbers, "free some memory: at least 1 GiB" if is_low else None)


def _format_gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.3g} GiB"


def check_load(disturbance: Disturbance, threads: int | None) -> Finding:
    """Other activity on the machine. threads: those of the measurement; a single one should not have had to wait."""
    reason = disturbance.describe(threads)
    message = (reason or "nothing else ran") + ("" if disturbance.load is None else f", load {disturbance.load:.2f}")
    advice = "measure at a time with less other activity"
    if disturbance.others_cores is not None and disturbance.others_cores > MAX_OTHERS_CORES:
        advice = f"another program uses {disturbance.others_cores:.1f} cores: stop it"
    return Finding.make("quiet", message, asdict(disturbance), advice if reason else None)
