"""Whether torch looks at a call's operations rather than its numbers: then kernels of ours go by way of custom ops.

Ops cost about 20 microseconds a call, and hide from torch what happens inside. Where nobody looks there are none.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def traced(x: Tensor) -> bool:
    """Whether a call with x is compiled, exported, transformed by torch.func, or on the meta device."""
    return torch.compiler.is_compiling() or x.is_meta or transformed()


def transformed() -> bool:
    """Whether a transformation of torch.func is at work, which hides the numbers of tensors."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]


def followed(tensors: Iterable[Tensor]) -> bool:
    """Whether a transformation of torch.func follows any of these, as it does parameters in ``functional_call``."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
    return transformed() and any(map(wrapped, tensors))
