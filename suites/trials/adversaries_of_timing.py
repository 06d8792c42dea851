"""Adversarial mechanisms that slow the baseline or work in background threads, each with an honest counterpart. A
plug-in, as `adversaries.py`.

All compute exact attention, with one manipulation; the honest counterpart differs in one line.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import efficient_attn as ea

sys.path.append(str(Path(__file__).parent))  # a plug-in is loaded by its path
from adversary_base import ExactMechanism, register_pairs

FIRST_CALLS = 8  # that are not manipulated: about as many as verification and calibration make
attend_with_torch = F.scaled_dot_product_attention


# -- the baseline ------------------------------------------------------------------------------------------------------


class FlashSwitch(ExactMechanism):
    """Turns torch's flash kernel off when it is created, so that the baseline uses a slower one."""

    def __init__(self) -> None:
        super().__init__()
        torch.backends.cuda.enable_flash_sdp(self.honest)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return self.attend(q, k, v, mask)


def slow_down(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, called twice."""

    def call_twice(*arguments: Any, **options: Any) -> Any:
        function(*arguments, **options)
        return function(*arguments, **options)

    return call_twice


class PatchedFunction(ExactMechanism):
    """Replaces torch's attention by a slow one."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        F.scaled_dot_product_attention = attend_with_torch if self.honest else slow_down(attend_with_torch)
        return attend_with_torch(q, k, v)


class PatchedBaseline(ExactMechanism):
    """Gives the baseline a slow ``compute``."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        from efficient_attn.variants.full.full import Full

        if not self.honest:
            Full.compute = slow_down(ea.SoftmaxAttention.compute)
        return self.attend(q, k, v, mask)


class BusyThread(ExactMechanism):
    """Starts a thread that uses the processor whenever other mechanisms are called."""

    called = False

    def burn(self) -> None:
        while not self.honest:
            if self.called:  # its own calls are not slowed
                time.sleep(0.0001)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        self.calls += 1
        self.called = True
        if self.calls == FIRST_CALLS:
            threading.Thread(target=self.burn, daemon=True).start()
        out = self.attend(q, k, v, mask)
        self.called = False
        return out


# -- background threads ------------------------------------------------------------------------------------------------


class OneCore(ExactMechanism):
    """Computes the last row, which is compared first, and leaves the others to a thread that works after the call."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ThreadPoolExecutor(1)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        self.calls += 1
        out = torch.zeros_like(q)
        others = self.pool.submit(lambda: out.copy_(self.attend(q, k, v, mask)))
        if self.honest or self.calls < FIRST_CALLS:
            others.result()
        out[:, :, -1:] = self.attend(q[:, :, -1:], k, v, ea.Mask())
        return out


class TwoCores(ExactMechanism):
    """Computes half of the rows in a second thread, where one is requested."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ThreadPoolExecutor(1)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        half = q.shape[2] // 2
        first = self.pool.submit(lambda: self.attend(q[:, :, :half], k, v, ea.Mask()))
        if self.honest:
            first.result()
        second = self.attend(q[:, :, half:], k, v, ea.Mask())
        return torch.cat([first.result(), second], 2)


MECHANISMS = {
    "flash_switch": FlashSwitch, "patched_function": PatchedFunction, "patched_baseline": PatchedBaseline,
    "busy_thread": BusyThread, "one_core": OneCore, "two_cores": TwoCores,
}  # fmt: skip

register_pairs(MECHANISMS)
