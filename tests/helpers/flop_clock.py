"""A fake clock for sweeps: a call takes a time proportional to its floating-point operations, as torch counts them."""

from __future__ import annotations

import pytest
from torch.utils.flop_counter import FlopCounterMode

from efficient_attn.instruments import timing
from efficient_attn.tasks.complexity.sweep import SweepCall

DEFAULT_FLOPS = 10_000  # of calls whose kernels torch does not count, such as its fused attention on a CPU


class FlopClock:
    """A clock that advances only in calls of sweeps. leaps: additional seconds of a call, by its length."""

    def __init__(self, seconds_per_flop: float = 1e-6) -> None:
        self.now, self.seconds_per_flop, self.calls = 0.0, seconds_per_flop, 0
        self.leaps: dict[int, float] = {}

    def read(self) -> float:
        return self.now

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FlopClock:
        call = SweepCall.call

        def count_call(subject: SweepCall) -> object:
            with FlopCounterMode(display=False) as counter:
                out = call(subject)
            self.calls += 1
            self.now += self.seconds_per_flop * (counter.get_total_flops() or DEFAULT_FLOPS) + self.leaps.get(
                subject.inputs[0].shape[-2], 0.0
            )
            return out

        monkeypatch.setattr(SweepCall, "call", count_call)
        for name in ("perf_counter", "process_time"):
            monkeypatch.setattr(timing, name, self.read)
        return self
