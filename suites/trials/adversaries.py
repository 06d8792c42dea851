"""Adversarial mechanisms, which deceive the timer or the verification, each with an honest counterpart. A plug-in:
`run --plugin adversaries.py`.

All compute exact attention, with one manipulation. Verification and the checks of timed calls must detect the
manipulated mechanism and accept its counterpart, which differs in one line.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import efficient_attn as ea

sys.path.append(str(Path(__file__).parent))  # a plug-in is loaded by its path
from adversary_base import ExactMechanism, register_pairs


class AdversarialMechanism(ExactMechanism):
    """Exact attention, with a cache for the subclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[Any, Tensor] = {}

    def compute_cached(self, key: Any, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask) -> Tensor:
        if self.honest:
            return self.attend(q, k, v, mask)
        if key not in self.cache:
            self.cache[key] = self.attend(q, k, v, mask).detach()
        return self.cache[key].clone()


class Pointer(AdversarialMechanism):
    """Caches its result by the inputs' addresses."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return self.compute_cached((q.data_ptr(), k.data_ptr(), v.data_ptr(), q.shape), q, k, v, mask)


class Version(AdversarialMechanism):
    """Caches its result until a version counter changes."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return self.compute_cached((q.data_ptr(), q._version, k._version, v._version, q.shape), q, k, v, mask)


class Corner(AdversarialMechanism):
    """Caches its result by the first row of each input."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return self.compute_cached((q.shape, *(x[0, 0, 0].numpy().tobytes() for x in (q, k, v))), q, k, v, mask)


class Contents(AdversarialMechanism):
    """Caches its result by a hash of all contents: never wrong, and useless if contents do not repeat."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return self.compute_cached((q.shape, *(hash(x.numpy().tobytes()) for x in (q, k, v))), q, k, v, mask)


class Constant(AdversarialMechanism):
    """Returns a constant."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return self.attend(q, k, v, mask) if self.honest else torch.zeros_like(q)


class Second(AdversarialMechanism):
    """Computes every second call, and returns the previous result otherwise."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.compute_cached((self.calls // 2, q.shape), q, k, v, mask)


class NotANumber(AdversarialMechanism):
    """Returns zeros, with a reference of NaN that no error exceeds."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return self.attend(q, k, v, mask) if self.honest else torch.zeros_like(q)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        out = super().oracle(q, k, v, mask, **inputs)
        return out if self.honest else out * float("nan")


class LateTensor(torch.Tensor):
    """A tensor that is computed when it is accessed."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(x.make() if isinstance(x, LateTensor) else x for x in args)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Lazy(AdversarialMechanism):
    """Returns a tensor that is computed when it is accessed."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        if self.honest:
            return self.attend(q, k, v, mask)
        lazy = torch.empty_like(q).as_subclass(LateTensor)
        lazy.make = lambda: self.attend(q, k, v, mask)  # pyright: ignore[reportAttributeAccessIssue]
        return lazy


class Clock(AdversarialMechanism):
    """Replaces the clock by a slow one."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        from efficient_attn.instruments import timing

        if not self.honest:
            timing.perf_counter = lambda: time.perf_counter() / 100
        return self.attend(q, k, v, mask)


class Thread(AdversarialMechanism):
    """Returns immediately and computes in a thread."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        out = torch.zeros_like(q)
        worker = threading.Thread(target=lambda: out.copy_(self.attend(q, k, v, mask)))
        worker.start()
        if self.honest or q.requires_grad:
            worker.join()
        return out


class Short(AdversarialMechanism):
    """Correct up to 1,024 positions only; declares that it mixes queries, so that single rows cannot be verified."""

    @property
    def traits(self) -> ea.Traits:
        return ea.Traits(mixes_queries=True)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return self.attend(q, k, v, mask) if self.honest or k.shape[2] <= 1024 else torch.zeros_like(q)


class Half(AdversarialMechanism):
    """Computes in half precision."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        dtype = q.dtype if self.honest else torch.bfloat16
        return self.attend(q.to(dtype), k.to(dtype), v.to(dtype), mask).to(q.dtype)


class Numpy(AdversarialMechanism):
    """Writes into its inputs through numpy, which leaves no version."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        out = self.attend(q, k, v, mask)
        (v.clone() if self.honest else v).detach().numpy()[:, :, -1] *= 0.5
        return out


class Sixty(AdversarialMechanism):
    """Writes into its inputs from its 61st call on."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        self.calls += 1
        out = self.attend(q, k, v, mask)
        if self.calls > 60 and not self.honest:
            v.detach().numpy()[:, :, -1] *= 0.5
        return out


MECHANISMS = {
    "pointer": Pointer, "version": Version, "corner": Corner, "contents": Contents, "constant": Constant,
    "second": Second, "not_a_number": NotANumber, "lazy": Lazy, "clock": Clock, "thread": Thread, "short": Short,
    "half": Half, "numpy": Numpy, "sixty": Sixty,
}  # fmt: skip

register_pairs(MECHANISMS)
