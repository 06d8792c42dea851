"""What torch's modes ask of a call: autocast, and a gradient that is zero rather than missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from .shapes import Values


def is_autocast_enabled(x: Tensor) -> bool:
    """Whether autocast is on for the device of x; torch knows none for the meta device."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def run_under_autocast(
    run: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Values,
    *arguments: Any,
    inputs: Mapping[str, Tensor],
    dtype: Any = None,
) -> Any:
    """What ``run(q, k, v, *rest, **inputs)`` gives where autocast is on: its tensors cast as those of torch's own
    attention are, and autocast off inside, so that kernels see one dtype and widen their sums themselves.

    dtype: another one than autocast's, that of a decode state. float64 stays as it is.
    """
    device = q.device.type
    target_dtype = dtype or torch.get_autocast_dtype(device)
    distinct = {id(x): x for x in (q, k, v, *inputs.values()) if x is not None}
    cast_tensors = {i: _cast(x, target_dtype) for i, x in distinct.items()}  # what is one tensor stays one
    cast_inputs = {name: cast_tensors[id(x)] for name, x in inputs.items()}
    with torch.autocast(device, enabled=False):
        return run(
            cast_tensors[id(q)],
            cast_tensors[id(k)],
            None if v is None else cast_tensors[id(v)],
            *arguments,
            **cast_inputs,
        )


def step_under_autocast(
    run: Callable[..., Any], q: Tensor, *tensors: Any, inputs: Mapping[str, Tensor], dtype: Any
) -> Any:
    """`run_cast` of a decode step. dtype: that of the state, which keeps it; the output has autocast's."""
    out, state = run_under_autocast(run, q, *tensors, inputs=inputs, dtype=dtype)
    return _cast(cast(Tensor, out), torch.get_autocast_dtype(q.device.type)), state


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


def attach_zero_gradient(out: Tensor, *inputs: Tensor) -> Tensor:
    """The output, with a gradient of zero where no query saw any key: a training step must not fail on such a row."""
    if out.requires_grad or not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs):
        return out
    return out + sum(x[..., :0].sum() for x in inputs)
