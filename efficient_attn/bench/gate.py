"""The gate: no time is reported for a result that is wrong. Every case first proves itself against its oracle."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.shapes import Values
from ..errors import UnsupportedError
from ..instruments.distance import relative_error
from .padding import Rows, take_rows
from .workload import Workload

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 4e-2, "float16": 5e-3}  # relative Frobenius error
ROWS = 32  # query rows a place at which a long output is compared
WHOLE = 1024  # up to this length, all rows of mechanisms whose rows cannot be taken alone
GRADIENTS = 256  # length at which gradients are compared: their oracle is dense


class Invalid(Exception):
    """The output is not the oracle's."""


def gate(workload: Workload) -> float:
    """The error of a workload's result against its oracle's, at its own shape where that is possible.

    Raises `Invalid`, with what and where, for a wrong shape or dtype, values not finite, or an error over `TOLERANCE`.
    """
    mode = workload.case.cell.place.mode
    if mode == "decode":
        return _passed(workload, *_decoded(workload))
    error = _passed(workload, *_rows(workload))
    if mode == "forward_backward":
        error = max(error, *(_passed(workload, a, b) for a, b in _gradients(workload)))
    if mode == "prefill":
        out = workload.prefill()[0]
        error = max(error, _passed(workload, out, workload.forward()))
    return error


def _rows(w: Workload) -> tuple[Tensor, Tensor]:
    """Fast and oracle rows of a forward pass: some at the start, in the middle and at the end when it is long."""
    traits, n = w.attn.traits, w.shape.n
    if traits.mixes_queries or not traits.cross or w.sample.inputs:
        if n > WHOLE:
            w = _smaller(w, WHOLE)
        return w.forward(), _oracle(w, Rows(slice(None), *w.tensors, w.mask))
    out = _shaped(w, w.forward())
    starts = sorted({0, max(0, n // 2 - ROWS // 2), max(0, n - ROWS)})
    places = [slice(s, min(s + ROWS, n)) for s in starts]
    taken = [take_rows(w.sample, w.mask, p) for p in places]
    return torch.cat([out[:, :, rows.place] for rows in taken], 2), torch.cat([_oracle(w, rows) for rows in taken], 2)


def _decoded(w: Workload) -> tuple[Tensor, Tensor]:
    """One step after the context, and the row that the oracle gives for it."""
    w.decoding.reset()  # steps may have been taken already
    out, token = w.decoding.step(), w.decoding.token
    sides = w.attn.traits.inputs
    with torch.no_grad():
        inputs = {n: _joined(w.sample.inputs[n], x) if sides[n].side == "key" else x for n, x in token.inputs.items()}
        k, v = _joined(w.sample.k, token.k), _joined(w.sample.v, token.v)
        return out, w.case.create(backend="dense")(token.q, k, v, Mask(causal=True), **inputs)


def _joined(context: Values, token: Values) -> Values:
    """All positions: those of the context and the newest."""
    return None if context is None or token is None else torch.cat([context, token], 2)


def _gradients(w: Workload) -> list[tuple[Tensor, Tensor]]:
    try:
        small = _smaller(w, min(w.shape.n, GRADIENTS))
        fast = small.forward_backward()
    except UnsupportedError:  # too short for it
        small = _smaller(w, min(w.shape.n, WHOLE))
        fast = small.forward_backward()
    small.attn = small.call = w.case.create(backend="dense")
    return list(zip(fast, small.forward_backward(), strict=True))


def _smaller(w: Workload, n: int) -> Workload:
    small = Workload(w.case, replace(w.shape, n=n, m=n))
    small.warm()
    return small


def _oracle(w: Workload, rows: Rows) -> Tensor:
    with torch.no_grad():
        return w.case.create(backend="dense")(rows.q, rows.k, rows.v, rows.mask, **w.sample.inputs)


def _shaped(w: Workload, out: Tensor) -> Tensor:
    s = w.shape
    want = (s.batch, s.heads, s.n, s.value_dim)
    if tuple(out.shape) != want or out.dtype != w.sample.q.dtype:
        raise Invalid(f"the output is {out.dtype} {list(out.shape)}, not {w.sample.q.dtype} {list(want)}")
    return out


def _passed(w: Workload, out: Tensor, oracle: Tensor) -> float:
    if out.shape != oracle.shape or out.dtype != oracle.dtype:
        raise Invalid(f"the output is {out.dtype} {list(out.shape)}, the oracle's {oracle.dtype} {list(oracle.shape)}")
    if not torch.isfinite(out).all():
        raise Invalid("the output holds values that are not finite")
    return check_error(relative_error(out, oracle), w.case.cell.place.dtype)


def check_error(error: float, dtype: str) -> float:
    """The error, if it is one that the dtype allows; else `Invalid`."""
    limit = TOLERANCE[dtype]
    if error > limit:
        raise Invalid(f"the output is not the oracle's: relative error {error:.2e}, allowed {limit:.0e}")
    return error
