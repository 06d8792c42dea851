"""Mechanisms that fail or have side effects, each in one way. A plug-in: `run --plugin failing_mechanisms.py`."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import traceback
from collections.abc import Callable

import torch
from torch import Tensor

import efficient_attn as ea

GIB = 2**30
Fault = Callable[[Tensor], Tensor]


def register_fault(fault: Fault) -> Fault:
    """Register exact attention whose output goes through a function, under the name of the function."""

    @ea.register(f"zz{fault.__name__}", family="full")
    class FaultyMechanism(ea.SoftmaxAttention):
        """Exact attention, followed by a fault."""

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            return fault(super().compute(q, k, v, mask, **inputs))

    return fault


@register_fault
def _sets_threads(out: Tensor) -> Tensor:
    torch.set_num_threads(2)
    return out


@register_fault
def _sets_default_dtype(out: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return out


@register_fault
def _enables_gradients(out: Tensor) -> Tensor:
    torch.set_grad_enabled(True)
    return out


@register_fault
def _draws_random_numbers(out: Tensor) -> Tensor:
    torch.rand(1)
    return out


@register_fault
def _returns_nan(out: Tensor) -> Tensor:
    return out * float("nan")


@register_fault
def _returns_wrong_shape(out: Tensor) -> Tensor:
    return out[:, :, :-1]


@register_fault
def _returns_wrong_dtype(out: Tensor) -> Tensor:
    return out.double()


@register_fault
def _is_one_percent_off(out: Tensor) -> Tensor:
    return out * 1.01


@register_fault
def _raises(out: Tensor) -> Tensor:
    raise ValueError("no\nsense")


@register_fault
def _exceeds_memory(out: Tensor) -> Tensor:
    return out + torch.ones(6 * GIB, dtype=torch.uint8)[0]


@register_fault
def _segfaults(out: Tensor) -> Tensor:
    ctypes.string_at(0)
    return out


@register_fault
def _kills_itself(out: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return out


@register_fault
def _hangs_in_c(out: Tensor) -> Tensor:
    ctypes.PyDLL(None).sleep(1000)  # does not release the interpreter's lock
    return out


@register_fault
def _sleeps(out: Tensor) -> Tensor:
    time.sleep(1000)
    return out


@ea.register("zz_works_once", family="full")
class WorksOnce(ea.SoftmaxAttention):
    """Exact attention that raises from its second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        if self.used:
            raise RuntimeError("only once")
        self.used = True
        return super().compute(q, k, v, mask, **inputs)


@ea.register("zz_shares_buffer", family="full")
class SharesBuffer(ea.SoftmaxAttention):
    """Exact attention whose results are views of one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: Tensor | None = None
        self.used = 0

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        out = super().compute(q, k, v, mask, **inputs)
        if self.buffer is None or self.buffer.shape[1:] != out.shape:
            self.buffer = out.new_empty((1000, *out.shape))
        self.used = (self.used + 1) % 1000
        return self.buffer[self.used].copy_(out)


@ea.register("zz_frees_inputs", family="full")
class FreesInputs(ea.SoftmaxAttention):
    """Exact attention that frees the memory of its queries."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        out = super().compute(q, k, v, mask, **inputs)
        q.untyped_storage().resize_(0)
        return out


@ea.register("zz_segfaults_when_timed", family="full")
class SegfaultsWhenTimed(ea.SoftmaxAttention):
    """Exact attention that crashes only in timed rounds."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        if any(frame.f_code.co_name == "run_rounds" for frame, _ in traceback.walk_stack(None)):
            ctypes.string_at(0)
        return super().compute(q, k, v, mask, **inputs)
