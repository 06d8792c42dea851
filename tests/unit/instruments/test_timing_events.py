"""Samples on a GPU, timed by the clock and by events of the GPU, with a simulated clock."""

from __future__ import annotations

import pytest

from efficient_attn.instruments import timing
from efficient_attn.instruments.timing import RoundPlan, SampleCost, TimedCall, run_rounds

HOST_S, ANSWER_S = 0.001, 0.0005  # of handing over a call, and of telling the host that all are done


class Gpu:
    """A GPU that computes what it was given while the host goes on."""

    def __init__(self, *, gpu_s: float) -> None:
        self.gpu_s, self.now, self.busy_until = gpu_s, 0.0, 0.0

    def run(self, count: int) -> None:
        for _ in range(count):
            self.busy_until = max(self.now, self.busy_until) + self.gpu_s
            self.now += HOST_S

    def synchronize(self) -> None:
        self.now = max(self.now, self.busy_until) + ANSWER_S

    def make_event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def record(self) -> None:
        self.at = max(self.gpu.now, self.gpu.busy_until)

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1e3


@pytest.mark.parametrize(
    ("device", "gpu_s", "wall_ms", "gpu_ms"),
    [
        ("cuda", 3 * HOST_S, 3.1, 3.0),
        ("cuda", HOST_S / 4, 1.1, 1.0),  # the GPU waits for the host
        ("cpu", 3 * HOST_S, 1.0, None),
    ],
)
def test_samples_on_a_gpu_are_also_timed_by_its_events(
    device: str, gpu_s: float, wall_ms: float, gpu_ms: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, calls = Gpu(gpu_s=gpu_s), 5
    monkeypatch.setattr(timing, "perf_counter", lambda: gpu.now)
    monkeypatch.setattr(timing.torch.cuda, "Event", gpu.make_event)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", gpu.synchronize)
    plans = {"a": RoundPlan(SampleCost(calls, calls * HOST_S), 2)}
    (result,) = run_rounds({"a": TimedCall(gpu.run)}, plans, {"a": 1}, seed=0, device=device)
    assert result.samples == {"a": [pytest.approx(wall_ms)] * 2}
    assert result.gpu == ({} if gpu_ms is None else {"a": [pytest.approx(gpu_ms)] * 2})
