"""A clock that goes by operations: a call takes as long as the multiplications and additions that torch does in it."""

from __future__ import annotations

import pytest
from torch.utils.flop_counter import FlopCounterMode

from efficient_attn.instruments import timing
from efficient_attn.tasks.complexity.sweep import SweepCall

UNCOUNTED = 10_000  # operations of a call whose kernels torch does not count, such as its fused attention on a CPU


class Clock:
    """Seconds that only calls of sweeps let pass, so many an operation. leaps: more seconds, by a call's length."""

    def __init__(self, second: float = 1e-6) -> None:
        self.now, self.second, self.calls = 0.0, second, 0
        self.leaps: dict[int, float] = {}

    def read(self) -> float:
        return self.now

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        call = SweepCall.call

        def counted(subject: SweepCall) -> object:
            with FlopCounterMode(display=False) as counter:
                out = call(subject)
            self.calls += 1
            self.now += self.second * (counter.get_total_flops() or UNCOUNTED) + self.leaps.get(
                subject.inputs[0].shape[-2], 0.0
            )
            return out

        monkeypatch.setattr(SweepCall, "call", counted)
        for name in ("perf_counter", "process_time"):
            monkeypatch.setattr(timing, name, self.read)
        return self
