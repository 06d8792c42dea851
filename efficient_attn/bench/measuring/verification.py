"""Verification: wrong results have no time. A case is verified before it is timed, and in each round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor

from ...contract.shapes import Sample
from ...errors import UnsupportedError
from .output_comparison import (
    MAX_PAIRS_PER_ROUND,
    InvalidResult,
    check_call,
    check_gradients,
    check_same,
    dense_pairs,
    supports_rows,
)
from .workload import Workload

GRADIENT_ROWS = 256  # length at which gradients are compared if the reference's would take too long
MAX_WHOLE_PAIRS = 2**25  # pairs of all heads that the reference may compute once, where single rows cannot be computed
LENGTH_MULTIPLE = 128  # of which shorter lengths are multiples
ONCE_PAIRS = 2**27  # pairs whose gradients it may compute once, where the mechanism accepts no shorter length


def verify_case(w: Workload) -> tuple[float, int]:
    """The error of a workload's result against the reference, and the length at which they were compared.

    Raises `InvalidResult`, with what and where, for a wrong shape or dtype, values that are not finite, or an error
    above `TOLERANCE`.
    """
    earlier = make_results(w, w.sample)[0]
    results = make_results(w, w.sample)
    check_plain(w, results, lambda x: shared_input(w.sample, x), earlier)
    del earlier
    if supports_rows(w) or dense_pairs(w) <= MAX_WHOLE_PAIRS:
        error, length = check_call(w, w.sample, results, most=MAX_WHOLE_PAIRS), w.shape.n
    else:
        small = _shrink(w, _fits_pairs(w, MAX_WHOLE_PAIRS))
        error, length = (
            check_call(small, small.sample, make_results(small, small.sample), most=MAX_WHOLE_PAIRS),
            small.shape.n,
        )
    if len(results) > 1:
        whole = supports_rows(w) or dense_pairs(w) <= MAX_PAIRS_PER_ROUND
        error = max(error, check_gradients(w, w.sample, results) if whole else _check_small_gradients(w))
    if w.case.group.config.mode == "prefill":
        error = max(error, check_same(w, results[0], w.forward(w.sample)))
    return error, length


def make_results(w: Workload, sample: Sample) -> Sequence[Tensor]:
    """A call's output, and the gradients if the case's mode has any."""
    return as_results(w.make_call(sample))


def as_results(made: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """The results of a call: an output, or an output and gradients."""
    return tuple(made) if isinstance(made, tuple) else (cast(Tensor, made),)


# -- what every result is held to ----------------------------------------------------------------------------------


def check_plain(
    w: Workload, results: Sequence[Tensor], owner: Callable[[Tensor], str | None], earlier: Tensor | None = None
) -> None:
    """Raise `InvalidResult` for anything but a plain tensor: a subclass, another device, shared memory."""
    device = w.sample.q.device
    for label, x in zip(("output", *["gradient"] * (len(results) - 1)), results, strict=True):
        if type(x) is not Tensor:
            raise InvalidResult(f"the {label} is a {type(x).__name__}, not a plain tensor")
        if x.device != device:
            raise InvalidResult(f"the {label} is on {x.device}, not on {device}")
        if name := owner(x):
            raise InvalidResult(f"the {label} shares its memory with the input {name}")
    memory = results[0].untyped_storage().data_ptr()
    if earlier is not None and earlier.untyped_storage().data_ptr() == memory:
        raise InvalidResult("the output shares its memory with that of an earlier call")


def shared_input(sample: Sample, x: Tensor) -> str | None:
    """The name of the input whose memory a tensor shares."""
    named = {"q": sample.q, "k": sample.k, "v": sample.v, **sample.inputs}
    at = x.untyped_storage().data_ptr()
    return next((n for n, i in named.items() if i is not None and i.untyped_storage().data_ptr() == at), None)


# -- where the oracle is not affordable at the timed length ----------------------------------------------------------


def _check_small_gradients(w: Workload) -> float:
    """At a short length; where that is too short for the mechanism, at a longer one, or for one row of the batch."""
    n, batch = w.shape.n, w.shape.batch
    sizes = [
        (min(n, GRADIENT_ROWS), batch, MAX_PAIRS_PER_ROUND),
        (_fits_pairs(w, MAX_PAIRS_PER_ROUND), batch, MAX_PAIRS_PER_ROUND),
    ]
    if w.case.group.config.fill == "full":
        sizes.append((n, 1, ONCE_PAIRS))
    refused = None
    for length, rows, most in sizes:
        try:
            small = _shrink(w, length, rows)
            if dense_pairs(small) <= most:
                return check_gradients(small, small.sample, small.forward_backward(small.sample), most=most)
        except UnsupportedError as error:
            refused = error
    raise refused or UnsupportedError(f"{w.attn.label}: the reference's gradient is not affordable at any length")


def _shrink(w: Workload, n: int, batch: int | None = None) -> Workload:
    shape = replace(w.shape, n=n, m=n, batch=batch or w.shape.batch)
    if shape == w.shape:
        return w
    small = Workload(w.case, shape)
    small.warm()
    return small


def _fits_pairs(w: Workload, pairs: int) -> int:
    return fits_pairs(w.shape.n, w.shape.batch * w.shape.heads, pairs)


def fits_pairs(n: int, heads: int, pairs: int) -> int:
    """The length, n at most, at which a reference over all pairs of all heads computes about so many: rounded down,
    because some mechanisms accept multiples of a block only."""
    most = math.isqrt(pairs // heads)
    return n if n <= most else max(most - most % LENGTH_MULTIPLE, min(most, LENGTH_MULTIPLE))
