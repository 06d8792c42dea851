"""Combinations of sizes, dtypes and masks: a random design that covers every pair, and one long sequence."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Shape
from ..check import CheckFailure, check
from ..covering_design import Case, cover, shrink
from ..mechanism_call import Call
from ..probing import refuses_shape, too_slow
from ..subject import Subject
from ..tensor_comparison import TOLERANCES, assert_all_close, assert_close
from .reference import no_fast_backend

LENGTHS = ((64, 64), (33, 400), (70, 41), (1, 65), (512, 512), (513, 513))
WIDTHS = (64, 8, 80, 13)  # of q and k; 8 is that of other checks
BATCHES = (1, 2, 4)
PADDING = ("none", "key_lengths", "key_mask", "query_lengths")
LARGE = 500  # cases with this many queries and more have few heads
LONG = 4133  # more than 4,096, and a prime number
LONG_SPANS = slice(0, 3), slice(2046, 2050), slice(LONG - 3, LONG)  # rows that are compared
TOGETHER = ("dtype", "padding", "start", "heads", "value_width", "causal")


def _levels(subject: Subject) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    """The levels of each factor, the simplest first, and reasons for widths that the mechanism does not support."""
    traits, kv_heads = subject.traits, subject.attn.kv_heads
    heads = ((2, 2), (2, 1), (3, 3), (6, 3)) if traits.grouped else ((2, 2), (3, 3), (4, 4))
    heads = ((kv_heads, kv_heads), (2 * kv_heads, kv_heads), (3 * kv_heads, kv_heads)) if kv_heads else heads
    heads = heads if traits.grouped or not kv_heads else ((kv_heads, kv_heads),)
    refusals = {width: refuses_shape(subject, subject.shape(64, head_dim=width, value_dim=width)) for width in WIDTHS}
    levels = {
        "lengths": tuple(x for x in LENGTHS if traits.cross or x[0] == x[1]),
        "width": tuple(width for width, refusal in refusals.items() if refusal is None),
        "batch": BATCHES,
        "heads": tuple(h for h in heads if not refuses_shape(subject, subject.shape(64, heads=h[0], kv_heads=h[1]))),
        "value_width": ("as q", 24, 96),
        "dtype": tuple(subject.dtypes),
        "padding": PADDING if traits.padding else ("none", "query_lengths"),
        "start": (None, 0, 25) if traits.cross else (None,),
        "causal": subject.causalities,
        "layout": ("as drawn", "[B, N, H, D]"),
    }
    refused = tuple(f"D={width} is refused: {refusal}" for width, refusal in refusals.items() if refusal)
    return levels, refused


def _shape(subject: Subject, case: Case) -> Shape:
    heads, kv_heads = case["heads"]
    value_width = case["width"] if case["value_width"] == "as q" else case["value_width"]
    sizes = {"batch": case["batch"], "head_dim": case["width"], "value_dim": value_width}
    return subject.shape(*case["lengths"], heads=heads, kv_heads=kv_heads, **sizes)


def _mask(subject: Subject, case: Case) -> Mask:
    (n, m), rows, kind = case["lengths"], range(case["batch"]), case["padding"]
    fields: dict[str, Any] = {"causal": case["causal"], "query_start": case["start"]}
    if kind == "key_lengths":
        fields["key_lengths"] = subject.lengths(*(max(m - 1 - b * m // 3, 1) for b in rows))
    if kind == "key_mask":
        fields["key_mask"] = subject.holes(_shape(subject, case))
    if kind == "query_lengths":
        fields["query_lengths"] = subject.lengths(*(max(n - 3 - b * n // 4, 0) for b in rows))
    return Mask(**fields)


def _is_affordable(case: Case) -> bool:
    """Whether a case is short, or has few heads and not float16, for which many processors have no arithmetic."""
    small = case["batch"] * case["heads"][0] <= 3 and case["dtype"] != torch.float16
    return case["lengths"][0] < LARGE or (small and case["layout"] == "as drawn" and case["value_width"] != 96)


def _cost(case: Case) -> float:
    (n, m), (heads, _) = case["lengths"], case["heads"]
    return 0.006 + 1.5e-7 * case["batch"] * heads * n * m  # roughly seconds


@lru_cache(maxsize=16)
def _design(levels: tuple[tuple[str, tuple[Any, ...]], ...], seed: int) -> tuple[Case, ...]:
    return tuple(cover(dict(levels), seed=seed, together=TOGETHER, allowed=_is_affordable, cost=_cost))


def _check_case(subject: Subject, case: Case) -> None:
    """Compare every backend's output and gradients with the float64 reference, within the dtype's tolerance."""
    shape, dtype = _shape(subject, case), case["dtype"]
    call = subject.draw(shape, dtype=dtype, mask=_mask(subject, case))
    if case["layout"] == "[B, N, H, D]":
        call = call.change(lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
    want = subject.evaluate(call.change(Tensor.double), subject.truth(shape, dtype))
    # larger gradients cannot be represented
    want = {name: x for name, x in want.items() if name == "output" or x.abs().max() < torch.finfo(dtype).max / 4}
    for backend in subject.backends_for(dtype):
        attn = subject.make(shape, backend=backend, dtype=dtype)
        assert_all_close(subject.evaluate(call, attn), want, backend, dtype=dtype)
        if subject.traits.gradient and shape.n < LARGE:
            with torch.no_grad():
                out = call.run(attn)
            assert_close(out, want["output"], f"{backend}: output under no_grad", tolerance=TOLERANCES[dtype])


def _find_error(subject: Subject, case: Case) -> Exception | None:
    try:
        _check_case(subject, case)
    except Exception as error:
        return error
    return None


def _describe(subject: Subject, case: Case) -> str:
    s, dtype = _shape(subject, case), str(case["dtype"]).removeprefix("torch.")
    words = (
        f"B={s.batch} H={s.heads} Hkv={s.kv_heads} N={s.n} M={s.m} D={s.head_dim} E={s.value_dim} {dtype}",
        "causal" if case["causal"] else "not causal",
        f"padded by {case['padding']}" if case["padding"] != "none" else "",
        f"query_start={case['start']}" if case["start"] is not None else "",
        f"in {case['layout']} memory order" if case["layout"] != "as drawn" else "",
    )
    return ", ".join(filter(None, words))


def _opt_outs(subject: Subject, case: Case, error: Exception) -> tuple[str, ...]:
    """The declarations with which the case would not be tested."""
    s = _shape(subject, case)
    needs = (
        ("grouped", s.heads != s.kv_heads),
        ("cross", s.n != s.m or case["start"] is not None),
        ("padding", case["padding"] not in ("none", "query_lengths")),
        ("causal", case["causal"]),
        ("gradient", "gradient" in str(error)),
    )
    return tuple(f"{trait}=False" for trait, is_needed in needs if is_needed)


@check(skip_reason=no_fast_backend)
def sizes_and_pairs(subject: Subject) -> str | None:
    """Values and gradients equal the reference at every size, in every dtype, and with every pair of factors."""
    levels, left_out = _levels(subject)
    assert levels["width"], f"it cannot be created for any width of {WIDTHS}: {left_out[0]}"
    slow = {x: too_slow(subject, subject.shape(*x, batch=4)) for x in levels["lengths"]}
    levels["lengths"] = tuple(x for x in levels["lengths"] if slow[x] is None)
    left_out += tuple(reason for reason in slow.values() if reason)
    for case in _design(tuple(levels.items()), subject.seed) if levels["lengths"] else ():
        if not (error := _find_error(subject, case)):
            continue
        case = shrink(case, levels, lambda simpler: _find_error(subject, simpler) is not None)
        error = _find_error(subject, case) or error
        raise CheckFailure(
            f"smallest failing input: {_describe(subject, case)} (drawn by seed {subject.seed}): "
            f"{'' if isinstance(error, AssertionError) else type(error).__name__ + ': '}{error}",
            _opt_outs(subject, case, error),
        )
    return "; ".join(left_out) or None


@check(skip_reason=no_fast_backend)
def long_sequence(subject: Subject) -> str | None:
    """Of a sequence beyond 4,096 positions, rows at the start, in the middle and at the end, and their gradients, equal
    the reference."""
    kv_heads, single_rows = subject.attn.kv_heads or 1, subject.traits.rows_alone
    shape = subject.shape(LONG, batch=1, heads=kv_heads, kv_heads=kv_heads, head_dim=16, value_dim=16)
    if reason := too_slow(subject, replace(shape, n=10) if single_rows else shape):
        return reason
    run, run_reference = (_run_whole, _run_spans) if single_rows else (Call.run, Call.run)
    for causal in subject.causalities if single_rows else subject.causalities[-1:]:
        call = subject.draw(shape, mask=Mask(causal=causal))
        # without single rows gradients are not compared: the reference's backward pass would take too long
        graph = subject.traits.gradient and single_rows and causal == subject.causalities[-1]
        with torch.set_grad_enabled(graph):
            exact, truth = call.change(Tensor.double), subject.truth(shape, subject.dtype)
            want = subject.evaluate(exact, truth, gradients=graph, run=run_reference)
            for backend in subject.backends_for(subject.dtype):
                got = subject.evaluate(call, subject.make(shape, backend=backend), gradients=graph, run=run)
                assert_all_close(got, want, f"{backend}, N={LONG}, causal={causal}", dtype=subject.dtype)
    return None if single_rows else "single rows cannot be computed: values only, with one value of causal"


def _run_whole(call: Call, attn: Attention) -> Tensor:
    """Rows of the output of a whole call."""
    out = call.run(attn)
    return torch.cat([out[:, :, span] for span in LONG_SPANS], 2)


def _run_spans(call: Call, attn: Attention) -> Tensor:
    """The same rows, computed alone."""
    spans = [call.under(replace(call.mask, query_start=span.start)).queries(span) for span in LONG_SPANS]
    return torch.cat([rows.run(attn) for rows in spans], 2)
