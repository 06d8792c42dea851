"""The gate: no time is reported for a wrong result. A case proves itself before it is timed, and in each round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.shapes import Sample, Values
from ..errors import UnsupportedError
from ..instruments.distance import relative_error
from .inputs import list_tensors
from .padding import take_rows
from .workload import Workload

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 4e-2, "float16": 5e-3}  # relative Frobenius error
ROWS = 32  # query rows a place at which a long output is compared
GRADIENTS = 256  # length at which gradients are compared where the oracle's would take too long
WHOLE = 2**25  # pairs of all heads that the oracle may work out once, where rows cannot be taken alone
AGAIN = 2**22  # the same in every round


class Invalid(Exception):
    """The output is not the oracle's."""


def gate(w: Workload) -> tuple[float, int]:
    """The error of a workload's result against its oracle's, and the length at which they were compared.

    Raises `Invalid`, with what and where, for a wrong shape or dtype, values not finite, or an error over `TOLERANCE`.
    """
    earlier = make_results(w, w.sample)[0]
    results = make_results(w, w.sample)
    check_plain(w, results, lambda x: shared_input(w.sample, x), earlier)
    del earlier
    if takes_rows(w) or dense_pairs(w) <= WHOLE:
        error, length = check_call(w, w.sample, results, most=WHOLE), w.shape.n
    else:
        small = _smaller(w, _affordable(w, WHOLE))
        error, length = check_call(small, small.sample, make_results(small, small.sample), most=WHOLE), small.shape.n
    if len(results) > 1:
        error = max(error, _check_small_gradients(w))
    if w.case.cell.place.mode == "prefill":
        error = max(error, _pass(w, results[0], w.forward(w.sample)))
    return error, length


def make_results(w: Workload, sample: Sample) -> Sequence[Tensor]:
    """A call's output, and the gradients if the case's mode has any."""
    return as_results(w.make_call(sample))


def as_results(made: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """What a call gave: an output, or an output and gradients."""
    return tuple(made) if isinstance(made, tuple) else (cast(Tensor, made),)


def takes_rows(w: Workload) -> bool:
    """Whether some rows can be asked for alone, so that the oracle is cheap at any length."""
    return w.attn.traits.cross and not w.attn.traits.mixes_queries


def dense_pairs(w: Workload) -> int:
    """Query-key pairs of all heads that the oracle works out for a call."""
    return w.shape.batch * w.shape.heads * w.attn.dense_pairs(w.shape.n, w.shape.m)


# -- what every result is held to ----------------------------------------------------------------------------------


def check_plain(
    w: Workload, results: Sequence[Tensor], owner: Callable[[Tensor], str | None], earlier: Tensor | None = None
) -> None:
    """`Invalid` for what is no tensor of its own: a subclass, on another device, in somebody else's memory."""
    device = w.sample.q.device
    for what, x in zip(("output", *["gradient"] * (len(results) - 1)), results, strict=True):
        if type(x) is not Tensor:
            raise Invalid(f"the {what} is a {type(x).__name__}, not a plain tensor")
        if x.device != device:
            raise Invalid(f"the {what} is on {x.device}, not on {device}")
        if name := owner(x):
            raise Invalid(f"the {what} shares its memory with the input {name}")
    memory = results[0].untyped_storage().data_ptr()
    if earlier is not None and earlier.untyped_storage().data_ptr() == memory:
        raise Invalid("the output shares its memory with that of an earlier call")


def shared_input(sample: Sample, x: Tensor) -> str | None:
    """The name of the input whose memory a tensor shares."""
    named = {"q": sample.q, "k": sample.k, "v": sample.v, **sample.inputs}
    at = x.untyped_storage().data_ptr()
    return next((n for n, i in named.items() if i is not None and i.untyped_storage().data_ptr() == at), None)


# -- a call and its oracle -----------------------------------------------------------------------------------------


def check_call(w: Workload, sample: Sample, results: Sequence[Tensor], *, most: int = AGAIN) -> float:
    """The error of what a call gave for a sample, on rows at its start, in its middle and at its end; else `Invalid`.

    The queries' gradients are compared on the same rows. Where rows cannot be taken alone, all are compared while the
    oracle works out at most so many pairs; above that, with what a new instance gives for copies of the same inputs.
    """
    out = _shaped(w, results[0].detach())
    if takes_rows(w):
        return max(_check_rows(w, sample, out, results, place) for place in _places(w.shape.n))
    if dense_pairs(w) <= most:
        return _pass(w, out, _ask(w, sample, w.mask))
    q, k, v, inputs = _copies(sample)
    with torch.no_grad():
        return _pass(w, out, w.case.create()(q, k, v, w.mask, **inputs))


def _places(n: int) -> list[slice]:
    starts = sorted({0, max(0, n // 2 - ROWS // 2), max(0, n - ROWS)})
    return [slice(s, min(s + ROWS, n)) for s in starts]


def _check_rows(w: Workload, sample: Sample, out: Tensor, results: Sequence[Tensor], place: slice) -> float:
    rows = take_rows(sample, w.mask, place, w.attn.traits.inputs)
    k, v, inputs = rows.sample.k, rows.sample.v, rows.sample.inputs
    q = rows.sample.q.detach().requires_grad_(len(results) > 1)
    with torch.set_grad_enabled(len(results) > 1):
        want = w.oracle(q, k, v, rows.mask, **inputs)
    error = _pass(w, out[:, :, rows.place], want.detach())
    if len(results) > 1:
        upstream = w.upstream(out)[:, :, rows.place]
        (slope,) = torch.autograd.grad(want, [q], upstream, allow_unused=True, materialize_grads=True)
        error = max(error, _pass(w, results[1][:, :, rows.place], slope, "the queries' gradient"))
    return error


def _ask(w: Workload, sample: Sample, mask: Mask) -> Tensor:
    with torch.no_grad():
        return w.oracle(sample.q, sample.k, sample.v, mask, **sample.inputs)


def _copies(sample: Sample) -> Sample:
    """The same contents elsewhere; what was one tensor stays one."""
    made = {id(x): x.clone() for x in list_tensors(sample)}
    q, k, v, inputs = sample
    return Sample(
        made[id(q)], made[id(k)], v if v is None else made[id(v)], {n: made[id(x)] for n, x in inputs.items()}
    )


def check_step(w: Workload, context: Sample, tokens: Sequence[Sample], out: Tensor) -> float:
    """The error of the last of some steps after a context against the row that the oracle gives; else `Invalid`."""
    sides, last = w.attn.traits.inputs, tokens[-1]
    with torch.no_grad():
        k, v = (_join([getattr(sample, name) for sample in (context, *tokens)]) for name in ("k", "v"))
        inputs = {
            n: _join([sample.inputs[n] for sample in (context, *tokens)]) if sides[n].side == "key" else x
            for n, x in last.inputs.items()
        }
        assert k is not None
        return _pass(w, out, w.oracle(last.q, k, v, Mask(causal=True), **inputs))


def _join(parts: Sequence[Values]) -> Values:
    """All positions: those of the context and the newest."""
    return None if parts[0] is None else torch.cat([x for x in parts if x is not None], 2)


# -- gradients -----------------------------------------------------------------------------------------------------


def check_gradients(w: Workload, sample: Sample, results: Sequence[Tensor]) -> float:
    """The error of all gradients of a call against the oracle's, where those are affordable; else `Invalid`."""
    if w.shape.batch * w.shape.heads * w.shape.n * w.shape.m > AGAIN:
        return 0.0
    attn, call = w.attn, w.call
    try:
        w.attn = w.call = w.oracle
        want = w.forward_backward(sample)
    finally:
        w.attn, w.call = attn, call
    names = ("output", *["gradient"] * (len(want) - 1))
    return max(_pass(w, a.detach(), b.detach(), f"the {n}") for n, a, b in zip(names, results, want, strict=True))


def _check_small_gradients(w: Workload) -> float:
    try:
        small = _smaller(w, min(w.shape.n, GRADIENTS))
        results = small.forward_backward(small.sample)
    except UnsupportedError:  # too short for it
        small = _smaller(w, min(w.shape.n, _affordable(w, AGAIN)))
        results = small.forward_backward(small.sample)
    return check_gradients(small, small.sample, results)


def _smaller(w: Workload, n: int) -> Workload:
    if n == w.shape.n == w.shape.m:
        return w
    small = Workload(w.case, replace(w.shape, n=n, m=n))
    small.warm()
    return small


def _affordable(w: Workload, pairs: int) -> int:
    """The length at which an oracle over all pairs works out so many."""
    return min(w.shape.n, math.isqrt(pairs // (w.shape.batch * w.shape.heads)))


# -- one comparison ------------------------------------------------------------------------------------------------


def _shaped(w: Workload, out: Tensor) -> Tensor:
    s = w.shape
    want = (s.batch, s.heads, s.n, s.value_dim)
    if tuple(out.shape) != want or out.dtype != w.sample.q.dtype:
        raise Invalid(f"the output is {out.dtype} {list(out.shape)}, not {w.sample.q.dtype} {list(want)}")
    return out


def _pass(w: Workload, out: Tensor, oracle: Tensor, what: str = "the output") -> float:
    if out.shape != oracle.shape or out.dtype != oracle.dtype:
        raise Invalid(f"{what} is {out.dtype} {list(out.shape)}, the oracle's {oracle.dtype} {list(oracle.shape)}")
    if not torch.isfinite(oracle).all():
        raise Invalid(f"{what} of the oracle holds values that are not finite")
    if not torch.isfinite(out).all():
        raise Invalid(f"{what} holds values that are not finite")
    return check_error(relative_error(out, oracle), w.case.cell.place.dtype, what)


def check_error(error: float, dtype: str, what: str = "the output") -> float:
    """The error, if it is one that the dtype allows; else `Invalid`."""
    limit = TOLERANCE[dtype]
    if not error <= limit:  # nor may it be no number
        raise Invalid(f"{what} is not the oracle's: relative error {error:.2e}, allowed {limit:.0e}")
    return error
