"""Mechanisms that do what mechanisms must not do, each for real. A plug-in: `run --plugin villains.py`."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import traceback
from typing import Any

import torch
from torch import Tensor

import efficient_attn as ea

GIB = 2**30


def _threads(out: Tensor) -> Tensor:
    torch.set_num_threads(2)
    return out


def _dtype(out: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return out


def _gradients(out: Tensor) -> Tensor:
    torch.set_grad_enabled(True)
    return out


def _random(out: Tensor) -> Tensor:
    torch.rand(1)
    return out


def _not_a_number(out: Tensor) -> Tensor:
    return out * float("nan")


def _another_shape(out: Tensor) -> Tensor:
    return out[:, :, :-1]


def _another_type(out: Tensor) -> Tensor:
    return out.double()


def _a_little_off(out: Tensor) -> Tensor:
    return out * 1.01


def _fail(out: Tensor) -> Tensor:
    raise ValueError("no\nsense")


def _too_much_memory(out: Tensor) -> Tensor:
    return out + torch.ones(6 * GIB, dtype=torch.uint8)[0]


def _segfault(out: Tensor) -> Tensor:
    ctypes.string_at(0)
    return out


def _kill(out: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return out


def _hang_in_c(out: Tensor) -> Tensor:
    ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter's lock
    return out


def _sleep(out: Tensor) -> Tensor:
    time.sleep(1000)
    return out


VILLAINS = {
    f.__name__: f
    for f in (
        _threads,
        _dtype,
        _gradients,
        _random,
        _not_a_number,
        _another_shape,
        _another_type,
        _a_little_off,
        _fail,
        _too_much_memory,
        _segfault,
        _kill,
        _hang_in_c,
        _sleep,
    )
}


def _register(name: str, deed: Any) -> None:
    class Villain(ea.SoftmaxAttention):
        """Exact attention, and then something else."""

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            return deed(super().compute(q, k, v, mask, **inputs))

    ea.register(f"zz{name}", family="full")(Villain)


for _name, _deed in VILLAINS.items():
    _register(_name, _deed)


@ea.register("zz_second", family="full")
class Second(ea.SoftmaxAttention):
    """Exact attention that is there for one call."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        if self.used:
            raise RuntimeError("only once")
        self.used = True
        return super().compute(q, k, v, mask, **inputs)


@ea.register("zz_growing", family="full")
class Growing(ea.SoftmaxAttention):
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


@ea.register("zz_frees", family="full")
class Frees(ea.SoftmaxAttention):
    """Exact attention that gives its inputs' memory back."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        out = super().compute(q, k, v, mask, **inputs)
        q.untyped_storage().resize_(0)
        return out


@ea.register("zz_late", family="full")
class Late(ea.SoftmaxAttention):
    """Exact attention that crashes only once its rounds have begun."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        if any(frame.f_code.co_name == "run_rounds" for frame, _ in traceback.walk_stack(None)):
            ctypes.string_at(0)
        return super().compute(q, k, v, mask, **inputs)
