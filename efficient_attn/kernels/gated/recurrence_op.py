"""The recurrence as a custom op, for torch.compile and torch.export. Shapes are those of `recurrence`."""

from typing import Any, get_type_hints

import torch
from torch import Tensor

from ..custom_ops import make_op, set_signature
from .passes import cut, run, run_backward
from .stretch import Inputs


def scan_op(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """See `recurrence.scan`."""
    out, end, _ = _scan_op(*inputs, state)
    return out, end


def _run(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, b: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return run(Inputs(q, k, v, g, b), state)


def _shapes(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, b: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    _, stretches = cut(Inputs(q, k, v, g, b))
    out = q.new_empty(*q.shape[:3], v.shape[2])
    return out, torch.empty_like(state), state.new_empty(len(stretches), *state.shape)


def _run_backward(grad: Tensor, grad_end: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *tensors, starts = arguments
    *grads, grad_state = run_backward(grad, grad_end, Inputs(*tensors), starts)
    return *(grad.new_empty(0) if x is None else x for x in grads), grad_state


def _backward_shapes(grad: Tensor, grad_end: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *tensors, starts = arguments
    grads = (grad.new_empty(0) if x is None else x.new_empty(x.shape) for x in tensors)
    return *grads, starts.new_empty(starts.shape[1:])


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, _ = inputs
    *_, starts = output
    ctx.save_for_backward(*tensors, starts)
    ctx.mark_non_differentiable(starts)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    grad, grad_end, _ = grads
    *tensors, starts = ctx.saved_tensors
    *input_grads, grad_state = _backward_op(grad, grad_end, *tensors, starts)
    return *(None if x is None else g for x, g in zip(tensors, input_grads, strict=True)), grad_state


set_signature(_run_backward, {"grad": Tensor, "grad_end": Tensor, **get_type_hints(Inputs), "starts": Tensor}, 6)
_scan_op = make_op("recurrence", _run, _shapes)
_backward_op = make_op("recurrence_backward", _run_backward, _backward_shapes)
_scan_op.register_autograd(_backward, setup_context=_setup_context)
