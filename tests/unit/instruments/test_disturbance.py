"""Disturbances: load of other programs, waiting, and counters of simulated machines."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from simulated_cuda import simulate_nvml
from trees import tree

from efficient_attn.instruments import disturbance
from efficient_attn.instruments.disturbance import GPU_READ_S, Disturbance, DisturbanceWatch, GpuWatch, describe_gpu
from efficient_attn.instruments.environment.gpu import NvmlDevice
from efficient_attn.instruments.environment.readings import Unknown

pytestmark = [pytest.mark.slow, pytest.mark.alone]

linux = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@contextmanager
def _other_program() -> Iterator[None]:
    """Run another program that uses one processor."""
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.communicate()


@linux
def test_load_of_another_program_is_detected() -> None:
    with _other_program():
        watch = DisturbanceWatch()
        _spin(1.0)
        interval = watch.read_interval()
    assert interval.others_cores is not None
    assert interval.others_cores > 0.5  # half if both share one processor
    assert "other programs used" in (interval.describe(None) or "")


@linux
def test_load_of_this_process_is_not_counted_as_other() -> None:
    """Other programs may run during the tests, so the least disturbed of five intervals is used."""
    watch, spans = DisturbanceWatch(), []
    for _ in range(5):
        _spin(0.5)
        spans.append(watch.read_interval())
    quietest = min(spans, key=lambda s: s.others_cores or 0)
    assert quietest.wall_s >= 0.5
    assert 0 < quietest.own_cpu_s <= quietest.wall_s * 1.05
    if quietest.others_cores > 1:  # type: ignore[operator]
        pytest.skip("another program takes a whole processor all the time")
    # own time counted as other load would add one processor
    assert quietest.others_cores + quietest.own_cpu_s / quietest.wall_s < 2.1  # type: ignore[operator]


def test_short_intervals_have_no_load_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((0.0, 0.9 * disturbance.MIN_COUNTED_S))
    monkeypatch.setattr(disturbance.time, "perf_counter", lambda: next(seconds))
    interval = DisturbanceWatch().read_interval()
    assert interval.others_cores is None
    assert interval.steal_share is None
    assert interval.wall_s == 0.9 * disturbance.MIN_COUNTED_S


def test_waiting_of_a_single_thread_is_reported() -> None:
    watch = DisturbanceWatch()
    _spin(0.05)
    time.sleep(0.1)
    interval = watch.read_interval()
    assert "its one thread waited" in (interval.describe(1) or "")
    assert "waited" not in (interval.describe(2) or "")
    assert "waited" not in (interval.describe() or "")


@linux
def test_reading_an_interval_opens_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is opened twice, and no other program is started."""
    watch, opened, real = DisturbanceWatch(), [], io.open
    monkeypatch.setattr(io, "open", lambda file, *args, **options: opened.append(file) or real(file, *args, **options))
    monkeypatch.setattr(subprocess, "Popen", None)
    watch.read_interval()
    assert opened
    assert len(opened) == len(set(opened))
    assert len(opened) <= 8 + (os.cpu_count() or 1)


# -- descriptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, None),
        ({"others_cores": 0.24, "steal_share": 0.019, "throttled": 0, "load": 9.0}, None),
        ({"others_cores": 0.91}, "other programs used 0.9 cores"),
        ({"steal_share": 0.05}, "the hypervisor took away 5% of the processor time"),
        ({"throttled": 3}, "the processor was throttled 3 times"),
        ({"own_cpu_s": 0.8}, "its one thread waited: wall time is 1.25 times its processor time"),
        (
            {"others_cores": 1.0, "throttled": 1},
            "other programs used 1.0 cores; the processor was throttled 1 times",
        ),
    ],
)
def test_disturbances_are_described(values: dict[str, float], message: str | None) -> None:
    assert Disturbance(**({"wall_s": 1.0, "own_cpu_s": 1.0} | values)).describe(1) == message  # type: ignore[arg-type]


# -- counters of simulated machines --------------------------------------------------------------------------------


def _machine(root: Path, *, stat: str, throttled: int = 0, hot: int = 0, version: int = 2) -> None:
    files = {"proc/stat": stat, "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": str(hot)}
    if version == 2:
        files |= {
            "proc/self/cgroup": "0::/job",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/job/cpu.stat": f"usage_usec 5\nnr_throttled {throttled}\nthrottled_usec 100",
        }
    else:
        files |= {
            "proc/self/cgroup": "3:cpu,cpuacct:/job",
            "sys/fs/cgroup/cpu/job/cpu.stat": f"nr_periods 9\nnr_throttled {throttled}\nthrottled_time 100",
        }
    tree(root, files)


@pytest.mark.parametrize("version", [1, 2])
def test_counters_of_both_cgroup_versions(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([(0.0, 0.0), (2.0, 1.5)])
    _machine(tmp_path, stat="cpu  100 0 50 1000 5 0 0 10 0 0\ncpu0 1 2 3\n", throttled=4, hot=1, version=version)
    wall, own = next(clock)
    monkeypatch.setattr(disturbance.time, "perf_counter", lambda: wall)
    monkeypatch.setattr(disturbance.time, "process_time", lambda: own)
    monkeypatch.setattr(disturbance.os, "sysconf", lambda name: 100)
    watch = DisturbanceWatch(tmp_path)
    _machine(tmp_path, stat="cpu  300 40 130 1090 5 10 20 110 0 0\n", throttled=6, hot=2, version=version)
    wall, own = next(clock)
    interval = watch.read_interval()
    assert (interval.wall_s, interval.own_cpu_s) == (2.0, 1.5)
    assert interval.others_cores == pytest.approx((3.5 - 1.5) / 2)  # 350 more ticks of work in total
    assert interval.steal_share == pytest.approx(100 / 450)
    assert interval.throttled == 3


def test_missing_counters_give_no_values(tmp_path: Path) -> None:
    watch = DisturbanceWatch(tmp_path)
    _spin(disturbance.MIN_COUNTED_S + 0.01)
    interval = watch.read_interval()
    assert interval.others_cores is interval.steal_share is interval.throttled is None
    assert interval.own_cpu_s > 0


# -- a GPU -----------------------------------------------------------------------------------------------------------


def test_sensors_of_a_gpu_are_read_between_samples_at_intervals() -> None:
    now, nvml = 0.0, simulate_nvml(reasons=0x04)
    watch = GpuWatch(NvmlDevice(nvml, "GPU-simulated"), clock=lambda: now)
    for step in range(9):
        now = step * GPU_READ_S / 4
        nvml.nvmlDeviceGetClockInfo = lambda handle, kind, step=step: 1000 + step
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle, step=step: 0x40 if step == 4 else 0x05
        watch.read_between_samples()
    summary = watch.summarize()
    assert (summary["readings"], summary["sm_mhz"]) == (3, [1000, 1004, 1008])
    assert summary["throttled"] == ["power limit", "temperature (hardware)"]
    assert summary["temperature_c"] is None
    assert "not supported" in summary["unknown"]["temperature_c"]
    assert describe_gpu(summary) == "the GPU was throttled: temperature (hardware)"
    assert describe_gpu(summary | {"throttled": ["power limit"], "others": []}) is None  # of its own work
    assert describe_gpu(summary | {"throttled": None, "others": [7, 9]}) == "other processes were on the GPU: 7, 9"


def test_a_gpu_without_nvml_is_not_disturbed() -> None:
    watch = GpuWatch(Unknown("not installed"))
    watch.read_between_samples()
    assert describe_gpu(watch.summarize()) is None
    assert watch.summarize()["unknown"]["others"] == "not installed"
