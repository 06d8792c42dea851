"""The causal scan as a custom op, for torch.compile and torch.export. Shapes and references are those of `sums`.

Eager kernels store features for one stretch of positions at a time, and recompute them in the backward pass. Here
torch's compiler handles the features, which need memory for all positions.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..custom_ops import make_op
from ..native import cpp_scan as native
from . import chunks
from .linear_config import LinearConfig
from .scan_state import ScanState
from .sums import Sums, apply_divisor, start_sums, unpack_past


def scan(
    config: LinearConfig, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, logs: Tensor | None, past: Sums | None
) -> tuple[Tensor, Sums]:
    """See `scan.scan`."""
    all_positions = slice(0, q.shape[2])
    x, _ = config.queries(q, all_positions)
    y, a = config.keys(k, all_positions, valid, logs)
    kv, z, reference = start_sums(config, k, v, logs, unpack_past(past))
    flags = reference is not None, config.decays, config.steady, config.native
    zero = kv.new_zeros(len(kv)) if reference is None else reference
    top, total, *end_sums = _scan_op(x, y, config.widen(v), a, kv, z, zero, *flags)
    return apply_divisor(config, top, total).to(q.dtype), Sums(
        end_sums[0], end_sums[1], None if reference is None else end_sums[2]
    )


def _copy_state(kv: Tensor, z: Tensor, reference: Tensor | None, decays: bool, steady: bool) -> ScanState:
    """A copy of a state, because an op must not change its inputs."""
    return ScanState(
        Sums(kv.clone(), z.clone(), None if reference is None else reference.clone()), decays=decays, steady=steady
    )


def _run(
    x: Tensor,
    y: Tensor,
    v: Tensor,
    a: Tensor | None,
    kv: Tensor,
    z: Tensor,
    reference: Tensor,
    weighted: bool,
    decays: bool,
    steady: bool,
    use_cpp: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    state = _copy_state(kv, z, reference if weighted else None, decays, steady)
    top = x.new_empty(*x.shape[:3], v.shape[2])
    total = (native if use_cpp else chunks).attend(x, y, v, a, state, top)
    assert total is not None
    return top, total, state.kv, state.z, reference.clone() if state.reference is None else state.reference


def _shapes(x: Tensor, y: Tensor, v: Tensor, a: Any, kv: Tensor, z: Tensor, reference: Tensor, *flags: Any) -> Any:
    top, total = x.new_empty(*x.shape[:3], v.shape[2]), x.new_empty(*x.shape[:3], 1)
    return top, total, *(t.new_empty(t.shape) for t in (kv, z, reference))


def _run_backward(
    grad_top: Tensor,
    grad_total: Tensor,
    grad_kv: Tensor,
    grad_z: Tensor,
    x: Tensor,
    y: Tensor,
    v: Tensor,
    a: Tensor | None,
    kv: Tensor,
    z: Tensor,
    reference: Tensor,
    weighted: bool,
    decays: bool,
    steady: bool,
    use_cpp: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    kernel = native if use_cpp else chunks
    state = _copy_state(kv, z, reference if weighted else None, decays, steady)
    grad_x, references = kernel.backward_queries(grad_top, grad_total, y, v, a, state)
    grad_state = ScanState(Sums(grad_kv.clone(), grad_z.clone()), decays=decays, steady=steady)
    grad_y, grad_v = kernel.backward_keys(x, y, v, a, grad_top, grad_total, grad_state, references)
    grad_a = y.new_empty(0) if a is None else (grad_y * y).sum(-1).to(a.dtype)
    return grad_x, grad_y, grad_v, grad_a, grad_state.kv, grad_state.z


def _backward_shapes(_: Tensor, __: Tensor, grad_kv: Tensor, grad_z: Tensor, *arguments: Any) -> Any:
    x, y, v, a = arguments[:4]
    grad_a = y.new_empty(0) if a is None else a.new_empty(a.shape)
    return *(t.new_empty(t.shape) for t in (x, y, v)), grad_a, *(t.new_empty(t.shape) for t in (grad_kv, grad_z))


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.how = inputs[7:]
    ctx.save_for_backward(*inputs[:7])
    ctx.mark_non_differentiable(output[4])


def _backward(ctx: Any, *grads: Tensor) -> Any:
    saved = ctx.saved_tensors
    grad_x, grad_y, grad_v, grad_a, grad_kv, grad_z = _scan_backward_op(*grads[:4], *saved, *ctx.how)
    return grad_x, grad_y, grad_v, None if saved[3] is None else grad_a, grad_kv, grad_z, *[None] * (1 + len(ctx.how))


_scan_op = make_op("scan", _run, _shapes)
_scan_backward_op = make_op("scan_backward", _run_backward, _backward_shapes)
_scan_op.register_autograd(_backward, setup_context=_setup_context)
