"""torch's modes: autocast, and gradients that are zero instead of missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from .shapes import Values


def is_autocast_enabled(x: Tensor) -> bool:
    """Whether autocast is enabled for the device of x; torch has none for the meta device."""
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
    """``run(q, k, v, *rest, **inputs)`` under autocast: tensors are cast as for torch's own attention, and autocast is
    disabled inside, so that kernels see one dtype and widen their sums themselves.

    dtype: instead of autocast's, that of a decode state. float64 is not cast.
    """
    device = q.device.type
    target_dtype = dtype or torch.get_autocast_dtype(device)
    distinct = {id(x): x for x in (q, k, v, *inputs.values()) if x is not None}
    cast_tensors = {
        i: _cast(x, target_dtype) for i, x in distinct.items()
    }  # a tensor shared by two inputs stays shared
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
    """`run_under_autocast` for a decode step. dtype: that of the state, which is kept; the output has autocast's."""
    out, state = run_under_autocast(run, q, *tensors, inputs=inputs, dtype=dtype)
    return _cast(cast(Tensor, out), torch.get_autocast_dtype(q.device.type)), state


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


def attach_zero_gradient(out: Tensor, *inputs: Tensor) -> Tensor:
    """The output, with a zero gradient where no query saw any key, so that training does not fail on such a row."""
    if out.requires_grad or not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs):
        return out
    return out + sum(x[..., :0].sum() for x in inputs)
