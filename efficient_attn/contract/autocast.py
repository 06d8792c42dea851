"""Autocast, and zero gradients instead of missing ones."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from .shapes import Inputs, Values, map_tensors


def is_autocast_enabled(x: Tensor) -> bool:
    """Whether autocast is enabled for the device of x; torch has none for the meta device."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def run_under_autocast(
    run: Callable[..., Any], q: Tensor, k: Tensor, v: Values, *arguments: Any, inputs: Inputs, dtype: Any = None
) -> Any:
    """Call ``run(q, k, v, *arguments, **inputs)`` under autocast: tensors are cast as for torch's own attention, and
    autocast is disabled inside, so that kernels get one dtype and choose the dtype of their sums. dtype: that of a
    decode state, instead of autocast's. float64 is not cast."""
    device = q.device.type
    cast_to = partial(_cast, dtype=dtype or torch.get_autocast_dtype(device))
    q, k, v, cast_inputs = map_tensors(cast_to, q, k, v, inputs)
    with torch.autocast(device, enabled=False):
        return run(q, k, v, *arguments, **cast_inputs)


def step_under_autocast(run: Callable[..., Any], q: Tensor, *tensors: Any, inputs: Inputs, dtype: Any) -> Any:
    """`run_under_autocast` for a decode step. dtype: that of the state, which is kept; the output has autocast's."""
    out, state = run_under_autocast(run, q, *tensors, inputs=inputs, dtype=dtype)
    return _cast(cast(Tensor, out), torch.get_autocast_dtype(q.device.type)), state


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


def attach_zero_gradient(module: nn.Module, out: Tensor, *inputs: Tensor) -> Tensor:
    """The output, with a zero gradient for inputs and parameters where no query saw any key, so that training does not
    fail on such a row."""
    if out is None:
        raise TypeError("the mechanism returned None instead of an output; is a return missing?")
    if out.requires_grad or not torch.is_grad_enabled():
        return out
    parameters = module.parameters() if module._parameters or module._modules else ()
    sources = [x for x in (*inputs, *parameters) if x.requires_grad]
    return out + sum((x if x.ndim else x[None])[..., :0].sum() for x in sources) if sources else out
