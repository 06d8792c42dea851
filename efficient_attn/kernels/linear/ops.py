"""The causal scan as a custom op, for torch.compile and torch.export. Shapes and references are those of `sums`.

Eager kernels hold features for one stretch of positions at a time, and again in the backward pass. Here torch's
compiler sees to the features, and they take the memory of all positions.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..native import scan as native
from ..traced import make_op
from . import chunks
from .recipe import Recipe
from .state import State
from .sums import Sums, divided, start_sums, unpack


def scan(
    recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, logs: Tensor | None, before: Sums | None
) -> tuple[Tensor, Sums]:
    """See `scan.scan`."""
    every = slice(0, q.shape[2])
    x, _ = recipe.queries(q, every)
    y, a = recipe.keys(k, every, valid, logs)
    kv, z, reference = start_sums(recipe, k, v, logs, unpack(before))
    how = reference is not None, recipe.decays, recipe.steady, recipe.native
    zero = kv.new_zeros(len(kv)) if reference is None else reference
    top, total, *after = _scan(x, y, recipe.wide(v), a, kv, z, zero, *how)
    return divided(recipe, top, total).to(q.dtype), Sums(after[0], after[1], None if reference is None else after[2])


def _copy_state(kv: Tensor, z: Tensor, reference: Tensor | None, decays: bool, steady: bool) -> State:
    """A state that may be written to: an op leaves what it is given alone."""
    return State(
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
    cpp: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    state = _copy_state(kv, z, reference if weighted else None, decays, steady)
    top = x.new_empty(*x.shape[:3], v.shape[2])
    total = (native if cpp else chunks).attend(x, y, v, a, state, top)
    assert total is not None
    return top, total, state.kv, state.z, reference.clone() if state.reference is None else state.reference


def _shapes(x: Tensor, y: Tensor, v: Tensor, a: Any, kv: Tensor, z: Tensor, reference: Tensor, *how: Any) -> Any:
    top, total = x.new_empty(*x.shape[:3], v.shape[2]), x.new_empty(*x.shape[:3], 1)
    return top, total, *(t.new_empty(t.shape) for t in (kv, z, reference))


def _run_backward(
    by_top: Tensor,
    by_total: Tensor,
    by_kv: Tensor,
    by_z: Tensor,
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
    cpp: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    kernel = native if cpp else chunks
    state = _copy_state(kv, z, reference if weighted else None, decays, steady)
    by_x, references = kernel.by_queries(by_top, by_total, y, v, a, state)
    by_state = State(Sums(by_kv.clone(), by_z.clone()), decays=decays, steady=steady)
    by_y, by_v = kernel.by_keys(x, y, v, a, by_top, by_total, by_state, references)
    by_a = y.new_empty(0) if a is None else (by_y * y).sum(-1).to(a.dtype)
    return by_x, by_y, by_v, by_a, by_state.kv, by_state.z


def _backward_shapes(_: Tensor, __: Tensor, by_kv: Tensor, by_z: Tensor, *given: Any) -> Any:
    x, y, v, a = given[:4]
    by_a = y.new_empty(0) if a is None else a.new_empty(a.shape)
    return *(t.new_empty(t.shape) for t in (x, y, v)), by_a, *(t.new_empty(t.shape) for t in (by_kv, by_z))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.how = inputs[7:]
    ctx.save_for_backward(*inputs[:7])
    ctx.mark_non_differentiable(output[4])


def _backward(ctx: Any, *grads: Tensor) -> Any:
    saved = ctx.saved_tensors
    by_x, by_y, by_v, by_a, by_kv, by_z = _scan_backward(*grads[:4], *saved, *ctx.how)
    return by_x, by_y, by_v, None if saved[3] is None else by_a, by_kv, by_z, *[None] * (1 + len(ctx.how))


_scan = make_op("scan", _run, _shapes)
_scan_backward = make_op("scan_backward", _run_backward, _backward_shapes)
_scan.register_autograd(_backward, setup_context=_keep)
