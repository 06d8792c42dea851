"""Other activity on the machine during a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .environment import cgroups, read_load_average
from .environment.gpu import POWER_LIMIT, NvmlDevice, read_sensors
from .environment.readings import ROOT, Unknown, read_number, read_table, split_unknowns, value_or_none
from .timing import DISTURBED_RATIO

MIN_COUNTED_S = 0.2  # seconds; the kernel counts in ticks of 10 ms, too coarse for a shorter time
MAX_OTHERS_CORES = 0.25  # processors that other programs may use on average
MAX_STEAL_SHARE = 0.02  # share of the requested processor time that the hypervisor may take away
GPU_READ_S = 0.25  # seconds between readings of a GPU's sensors, each of which takes about a millisecond


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """The counters over a span of time; None for those that the system does not have, or not finely enough.

    wall_s, own_cpu_s: elapsed seconds, and processor seconds of this process over all threads. others_cores: processors
    used by all other programs, on average. steal_share: the share of runnable time that the hypervisor gave to others.
    throttled: how often a quota or heat throttled processors. load: the average of the last minute.
    """

    wall_s: float
    own_cpu_s: float
    others_cores: float | None = None
    steal_share: float | None = None
    throttled: int | None = None
    load: float | None = None

    def describe(self, threads: int | None = None) -> str | None:
        """Why measurements during this time count as disturbed; None if they do not.

        threads: of the measured code; the processor time of a single one should equal the wall time.
        """
        reasons = []
        if self.others_cores is not None and self.others_cores > MAX_OTHERS_CORES:
            reasons.append(f"other programs used {self.others_cores:.1f} cores")
        if self.steal_share is not None and self.steal_share > MAX_STEAL_SHARE:
            reasons.append(f"the hypervisor took away {self.steal_share:.0%} of the processor time")
        if self.throttled:
            reasons.append(f"the processor was throttled {self.throttled} times")
        ratio = self.wall_s / self.own_cpu_s if self.own_cpu_s > 0 else 0.0
        if threads == 1 and ratio > DISTURBED_RATIO:
            reasons.append(f"its one thread waited: wall time is {ratio:.2f} times its processor time")
        return "; ".join(reasons) or None


class DisturbanceWatch:
    """Reads the counters when it is created, and at every `read_interval`: about 0.1 ms each on a small machine."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._last = self._read_counters()

    def read_interval(self) -> Disturbance:
        """The disturbance since the last call, or since the watch was created."""
        (wall, own_cpu, before), self._last = self._last, self._read_counters()
        wall, own_cpu = self._last[0] - wall, self._last[1] - own_cpu
        pairs = zip(before, self._last[2], strict=True)
        busy, stolen, throttled = (None if a is None or b is None else max(0, b - a) for a, b in pairs)
        averages, others_cores, steal_share = read_load_average(), None, None
        if wall >= MIN_COUNTED_S and busy is not None:
            others_cores = max(0.0, busy / os.sysconf("SC_CLK_TCK") - own_cpu) / wall
            steal_share = None if stolen is None else stolen / max(1, busy + stolen)
        return Disturbance(
            wall_s=wall,
            own_cpu_s=own_cpu,
            others_cores=others_cores,
            steal_share=steal_share,
            throttled=throttled,
            load=averages[0] if averages else None,
        )

    def _read_counters(self) -> tuple[float, float, tuple[int | None, int | None, int | None]]:
        """The wall and the processor time in seconds; and counts: ticks of all programs, ticks that the hypervisor took
        away, and how often processors were throttled."""
        busy = stolen = None
        if (counts := (value_or_none(read_table(self._root / "proc/stat")) or {}).get("cpu")) is not None:
            user, nice, system, _idle, _iowait, irq, softirq, *rest = (int(ticks) for ticks in counts.split())
            busy, stolen = user + nice + system + irq + softirq, rest[0] if rest else None
        return time.perf_counter(), time.process_time(), (busy, stolen, _count_throttled(self._root))


def _count_throttled(root: Path) -> int | None:
    """How often a control group's quota or the temperature has throttled processors since the machine started."""
    folders = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle"))
    thermal_counts = [value_or_none(read_number(f / "core_throttle_count")) for f in folders]
    counts = [count for count in (*thermal_counts, cgroups.count_throttled(root)) if count is not None]
    return sum(counts) if counts else None


class GpuWatch:
    """Reads a GPU's sensors between samples, when its clock and power are still those of the measured calls."""

    def __init__(
        self, device: NvmlDevice | Unknown | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._device, self._clock, self._last_s = device, clock, -GPU_READ_S
        self.readings: list[dict[str, Any]] = []

    def read_between_samples(self) -> None:
        """Read the sensors, unless that was less than `GPU_READ_S` ago."""
        if (now := self._clock()) - self._last_s >= GPU_READ_S:
            self.readings.append(read_sensors(self._device))
            self._last_s = now

    def summarize(self) -> dict[str, Any]:
        """Of each sensor with numbers the lowest, median and highest reading; all reasons why the clock was reduced,
        and all other processes; None for what the GPU does not report, with the reasons in ``unknown``."""
        summary: dict[str, Any] = {}
        for name, first in (self.readings or [read_sensors(self._device)])[0].items():
            values = [value for reading in self.readings if not isinstance(value := reading[name], Unknown)]
            if not values:
                summary[name] = first
            elif isinstance(values[0], list):
                summary[name] = sorted({item for value in values for item in value})
            else:
                summary[name] = [min(values), median(values), max(values)]
        values, reasons = split_unknowns({"readings": len(self.readings), **summary})
        return values | ({"unknown": reasons} if reasons else {})


def describe_gpu(summary: dict[str, Any]) -> str | None:
    """Why measurements on a GPU count as disturbed, from `GpuWatch.summarize`; None if they do not.

    Its own work may reach the power limit, at which the clock is as high as it can stay: that is only recorded.
    """
    throttled = [reason for reason in summary["throttled"] or () if reason != POWER_LIMIT]
    others = ", ".join(map(str, summary["others"] or ()))
    reasons = [f"the GPU was throttled: {', '.join(throttled)}"] if throttled else []
    reasons += [f"other processes were on the GPU: {others}"] if others else []
    return "; ".join(reasons) or None
