"""Verification: a case is compared with its reference before it is timed, and in each round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import cast

from torch import Tensor

from ...errors import UnsupportedError
from .inputs import find_sharing
from .output_comparison import (
    MAX_PAIRS_PER_ROUND,
    check_call,
    check_gradients,
    check_same,
    dense_pairs,
    supports_rows,
)
from .row_errors import InvalidResult
from .workload import Workload

GRADIENT_ROWS = 256  # length at which gradients are compared if the reference's would take too long
MAX_WHOLE_PAIRS = 2**25  # pairs of all heads that the reference may compute once, where single rows cannot be computed
LENGTH_MULTIPLE = 128  # shorter lengths are multiples of it
MAX_GRADIENT_PAIRS = 2**27  # pairs whose gradients it may compute once, if the mechanism accepts no shorter length


def verify_case(w: Workload) -> tuple[float, int]:
    """The error of a workload's result against the reference, and the length at which they were compared.

    Raises `InvalidResult` for a wrong shape or dtype, values that are not finite, or an error above `TOLERANCE`.
    """
    rng = Random(w.case.group.sampling.seed)
    earlier = as_results(w.make_call(w.sample))[0]
    results = as_results(w.make_call(w.sample))
    inputs = {"q": w.sample.q, "k": w.sample.k, "v": w.sample.v, **w.sample.inputs}
    check_plain(w, results, lambda x: find_sharing(x, inputs), earlier)
    del earlier
    small, small_results = w, results
    if not supports_rows(w) and dense_pairs(w) > MAX_WHOLE_PAIRS:
        small = _shrink(w, find_affordable_length(w.shape.n, w.shape.batch * w.shape.heads, MAX_WHOLE_PAIRS))
        small_results = as_results(small.make_call(small.sample))
    error = check_call(small, small.sample, small_results, rng, max_pairs=MAX_WHOLE_PAIRS)
    if len(results) > 1:
        whole = supports_rows(w) or dense_pairs(w) <= MAX_PAIRS_PER_ROUND
        error = max(error, check_gradients(w, w.sample, results, rng) if whole else _check_small_gradients(w, rng))
    if w.case.group.config.mode == "prefill":
        error = max(error, check_same(w, results[0], w.forward(w.sample)))
    return error, small.shape.n


def as_results(returned: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """What a call returned, an output or an output and gradients, as a sequence."""
    return tuple(returned) if isinstance(returned, tuple) else (cast(Tensor, returned),)


def check_plain(
    w: Workload, results: Sequence[Tensor], find_owner: Callable[[Tensor], str | None], earlier: Tensor | None = None
) -> None:
    """Raise `InvalidResult` for a tensor subclass, another device, or memory shared with inputs or an earlier output.

    find_owner: returns the name of the input whose memory a tensor shares.
    """
    device = w.sample.q.device
    for label, x in zip(("output", *["gradient"] * (len(results) - 1)), results, strict=True):
        if type(x) is not Tensor:
            raise InvalidResult(f"the {label} is a {type(x).__name__}, not a plain tensor")
        if x.device != device:
            raise InvalidResult(f"the {label} is on {x.device}, not on {device}")
        if name := find_owner(x):
            raise InvalidResult(f"the {label} shares its memory with the input {name}")
    if find_sharing(results[0], {"earlier": earlier}):
        raise InvalidResult("the output shares its memory with that of an earlier call")


# -- shorter lengths, if the reference is not affordable at the timed one ----------------------------------------------


def _check_small_gradients(w: Workload, rng: Random) -> float:
    """The gradients' error at a short length, or if the mechanism does not accept it, at a longer one or for one row of
    the batch."""
    n, batch = w.shape.n, w.shape.batch
    affordable = find_affordable_length(n, batch * w.shape.heads, MAX_PAIRS_PER_ROUND)
    sizes = [(length, batch, MAX_PAIRS_PER_ROUND) for length in (min(n, GRADIENT_ROWS), affordable)]
    if w.case.group.config.fill == "full":
        sizes.append((n, 1, MAX_GRADIENT_PAIRS))
    unsupported = None
    for length, rows, max_pairs in sizes:
        try:
            small = _shrink(w, length, rows)
            if dense_pairs(small) <= max_pairs:
                results = small.forward_backward(small.sample)
                return check_gradients(small, small.sample, results, rng, max_pairs=max_pairs)
        except UnsupportedError as error:
            unsupported = error
    raise unsupported or UnsupportedError(f"{w.attn.label}: the reference's gradient is not affordable at any length")


def _shrink(w: Workload, n: int, batch: int | None = None) -> Workload:
    shape = replace(w.shape, n=n, m=n, batch=batch or w.shape.batch)
    if shape == w.shape:
        return w
    small = Workload(w.case, shape)
    small.warm()
    return small


def find_affordable_length(n: int, heads: int, pairs: int) -> int:
    """The length, n at most, at which a reference over all pairs of all heads computes at most so many. It is rounded
    down, because some mechanisms only accept multiples of a block."""
    longest = math.isqrt(pairs // heads)
    return n if n <= longest else max(longest - longest % LENGTH_MULTIPLE, min(longest, LENGTH_MULTIPLE))
