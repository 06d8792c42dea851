"""Sizes, dtypes and masks together: a random design in which every pair of them occurs, and one long sequence."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.shapes import Shape
from ..check import CheckFailure, check
from ..covering_design import Case, cover, shrink
from ..probing import refuses_shape, too_slow
from ..subject import Call, Subject
from ..tensor_comparison import EPSILONS, SLOPES, assert_close
from .reference import no_fast_form

LENGTHS = ((64, 64), (33, 400), (70, 41), (1, 65), (512, 512), (513, 513))
WIDTHS = (64, 8, 80, 13)  # of q and k; 8 is the one of all other checks
BATCHES = (1, 2, 4)
PADDING = ("none", "key_lengths", "key_mask", "query_lengths")
LARGE = 500  # from here on a case has few heads and is run once
LONG = 4133  # beyond 4,096, no multiple of anything
TOGETHER = ("dtype", "padding", "start", "heads", "value_width", "causal")


def _levels(subject: Subject) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    """The levels to test, the simplest first, and those with which the mechanism cannot be created."""
    traits, kv_heads = subject.traits, subject.attn.kv_heads
    heads = ((2, 2), (2, 1), (3, 3), (6, 3)) if traits.grouped else ((2, 2), (3, 3), (4, 4))
    heads = ((kv_heads, kv_heads), (2 * kv_heads, kv_heads), (3 * kv_heads, kv_heads)) if kv_heads else heads
    heads = heads if traits.grouped or not kv_heads else ((kv_heads, kv_heads),)
    refusals = {width: refuses_shape(subject, subject.shape(64, head_dim=width, value_dim=width)) for width in WIDTHS}
    levels = {
        "lengths": tuple(x for x in LENGTHS if traits.cross or x[0] == x[1]),
        "width": tuple(width for width, refusal in refusals.items() if refusal is None),
        "batch": BATCHES,
        "heads": tuple(x for x in heads if refuses_shape(subject, _shape(subject, (64, 64), heads=x)) is None),
        "value_width": ("as q", 24, 96),
        "dtype": tuple(subject.dtypes),
        "padding": PADDING if traits.padding else ("none", "query_lengths"),
        "start": (None, 0, 25) if traits.cross else (None,),
        "causal": subject.causalities,
        "layout": ("as drawn", "[B, N, H, D]"),
    }
    refused = tuple(f"D={width} is refused: {refusal}" for width, refusal in refusals.items() if refusal)
    return levels, refused


def _shape(subject: Subject, lengths: tuple[int, int], heads: tuple[int, int], **sizes: int) -> Shape:
    return subject.shape(*lengths, heads=heads[0], kv_heads=heads[1], **sizes)


def _shape_of(subject: Subject, case: Case) -> Shape:
    c: Any = case
    value_width = c["width"] if c["value_width"] == "as q" else c["value_width"]
    sizes = {"batch": c["batch"], "head_dim": c["width"], "value_dim": value_width}
    return _shape(subject, c["lengths"], c["heads"], **sizes)


def _mask(subject: Subject, case: Case) -> Mask:
    c: Any = case
    (n, m), batch, kind = c["lengths"], c["batch"], c["padding"]
    rows, shape = range(batch), _shape_of(subject, case)
    fields: dict[str, Any] = {"causal": c["causal"], "query_start": c["start"]}
    if kind == "key_lengths":
        fields["key_lengths"] = subject.lengths(*(max(m - 1 - b * m // 3, 1) for b in rows))
    if kind == "key_mask":
        fields["key_mask"] = subject.holes(shape)
    if kind == "query_lengths":
        fields["query_lengths"] = subject.lengths(*(max(n - 3 - b * n // 4, 0) for b in rows))
    return Mask(**fields)


def _bearable(case: Case) -> bool:
    """Long sequences have few heads, and not float16, for which many processors have no arithmetic."""
    c: Any = case
    small = c["batch"] * c["heads"][0] <= 3 and c["dtype"] != torch.float16
    return c["lengths"][0] < LARGE or (small and c["layout"] == "as drawn" and c["value_width"] != 96)


def _cost(case: Case) -> float:
    c: Any = case
    (n, m), (heads, _) = c["lengths"], c["heads"]
    return 0.006 + 1.5e-7 * c["batch"] * heads * n * m  # roughly seconds


@lru_cache(maxsize=16)
def _design(levels: tuple[tuple[str, tuple[Any, ...]], ...], seed: int) -> tuple[Case, ...]:
    return tuple(cover(dict(levels), seed=seed, together=TOGETHER, allowed=_bearable, cost=_cost))


def _hold(subject: Subject, case: Case) -> None:
    """Every backend's output and gradients equal the float64 reference, within the dtype's tolerance."""
    shape, dtype = _shape_of(subject, case), torch.float64 if case["dtype"] is None else case["dtype"]
    assert isinstance(dtype, torch.dtype)
    call = subject.draw(shape, dtype=dtype, mask=_mask(subject, case))
    if case["layout"] == "[B, N, H, D]":
        call = call.change(lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
    exact, truth = call.change(lambda x: x.double()), subject.truth(shape, dtype)
    want, slopes = exact.gradients(truth) if subject.traits.gradient else (exact.run(truth), {})
    for backend in subject.backends_for(dtype):
        attn = subject.make(shape, backend=backend, dtype=dtype)
        out, grads = call.gradients(attn) if subject.traits.gradient else (call.run(attn), {})
        assert_close(out.double(), want, f"{backend}: output", tolerance=EPSILONS[dtype])
        fitting = {name: x for name, x in slopes.items() if x.abs().max() < torch.finfo(dtype).max / 4}
        for name, slope in fitting.items():
            assert_close(grads[name].double(), slope, f"{backend}: gradient by {name}", tolerance=SLOPES[dtype])
        if subject.traits.gradient and shape.n < LARGE:
            with torch.no_grad():
                assert_close(call.run(attn).double(), want, f"{backend}: output, no graph", tolerance=EPSILONS[dtype])


def _try(subject: Subject, case: Case) -> Exception | None:
    try:
        _hold(subject, case)
    except Exception as error:
        return error
    return None


def _tell(subject: Subject, case: Case) -> str:
    c: Any = case
    s, dtype = _shape_of(subject, case), str(c["dtype"]).removeprefix("torch.")
    words = [f"B={s.batch} H={s.heads} Hkv={s.kv_heads} N={s.n} M={s.m} D={s.head_dim} E={s.value_dim} {dtype}"]
    words += ["causal" if c["causal"] else "not causal"]
    words += [f"padded by {c['padding']}"] if c["padding"] != "none" else []
    words += [f"query_start={c['start']}"] if c["start"] is not None else []
    words += ["in [B, N, H, D] memory order"] if c["layout"] != "as drawn" else []
    return ", ".join(words)


def _switches(subject: Subject, case: Case, error: Exception) -> tuple[str, ...]:
    """The declarations without which such a case would not be tested."""
    s, c = _shape_of(subject, case), case
    switches = (
        ("grouped", s.heads != s.kv_heads),
        ("cross", s.n != s.m or c["start"] is not None),
        ("padding", c["padding"] not in ("none", "query_lengths")),
        ("causal", c["causal"]),
        ("gradient", "gradient" in str(error)),
    )
    return tuple(f"{trait}=False" for trait, asked in switches if asked)


@check(ask=no_fast_form)
def sizes_and_pairs(subject: Subject) -> str | None:
    """Values and gradients equal the reference at every size, in every dtype, and with every pair of factors."""
    levels, left_out = _levels(subject)
    assert levels["width"], f"it cannot be created for any width of {WIDTHS}: {left_out[0]}"
    slow = {x: too_slow(subject, subject.shape(*x, batch=4)) for x in levels["lengths"]}
    levels["lengths"] = tuple(x for x in levels["lengths"] if slow[x] is None)
    left_out += tuple(reason for reason in slow.values() if reason)
    for case in _design(tuple(levels.items()), subject.seed) if levels["lengths"] else ():
        if not (error := _try(subject, case)):
            continue
        case = shrink(case, levels, lambda simpler: _try(subject, simpler) is not None)
        error = _try(subject, case) or error
        raise CheckFailure(
            f"smallest failing input: {_tell(subject, case)} (drawn by seed {subject.seed}): "
            f"{'' if isinstance(error, AssertionError) else type(error).__name__ + ': '}{error}",
            _switches(subject, case, error),
        )
    return "; ".join(left_out) or None


@check(ask=no_fast_form)
def long_sequence(subject: Subject) -> str | None:
    """Beyond 4,096 positions rows and their gradients, at the start, in the middle and at the end, equal the
    reference."""
    kv_heads = subject.attn.kv_heads or 1
    shape = subject.shape(LONG, batch=1, heads=kv_heads, kv_heads=kv_heads, head_dim=16, value_dim=16)
    apart = subject.traits.rows_alone
    places = [slice(0, 3), slice(2046, 2050), slice(LONG - 3, LONG)] if apart else [slice(None)]
    if slow := too_slow(subject, replace(shape, n=10) if apart else shape):
        return slow
    dtype = torch.float64 if subject.dtype == torch.float64 else subject.dtype
    for causal in subject.causalities if apart else subject.causalities[-1:]:
        call = subject.draw(shape, mask=Mask(causal=causal), dtype=dtype)
        weight = torch.zeros(1, shape.heads, LONG, 16)
        for place in places:
            drawn = torch.Generator().manual_seed(1)
            weight[:, :, place] = torch.randn(weight[:, :, place].shape, generator=drawn)
        # a whole reference is computed once, without its backward pass, which takes several times as long
        graph = subject.traits.gradient and apart and causal == subject.causalities[-1]
        want = [_alone(subject, shape, call, place, weight[:, :, place] if graph else None) for place in places]
        for backend in subject.backends_for(dtype):
            attn, label = subject.make(shape, backend=backend, dtype=dtype), f"{backend}, N={LONG}, causal={causal}"
            if graph:
                out, grads = call.gradients(attn, weight=weight.to(call["q"]))
            else:
                with torch.no_grad():
                    out, grads = call.run(attn), {}
            for place, (rows, _) in zip(places, want, strict=True):
                which = f"rows {place.start} to {place.stop}, {label}"
                assert_close(out[:, :, place].double(), rows, which, tolerance=EPSILONS[dtype])
            if graph:
                for name, grad in grads.items():
                    right = _joined(name, call, places, [slopes for _, slopes in want], grad)
                    assert_close(grad.double(), right, f"gradient by {name}, {label}", tolerance=SLOPES[dtype])
    return None if apart else "single rows cannot be computed: values only, in one direction"


def _alone(
    subject: Subject, shape: Shape, call: Call, place: slice, weight: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The reference rows at a position and their gradients, for those queries only if possible."""
    truth = subject.truth(shape, call["q"].dtype)
    start = None if place.start is None else place.start
    some = call.under(replace(call.mask, query_start=start)).change(lambda x: x.double()).queries(place)
    if weight is None:
        with torch.no_grad():
            return some.run(truth), {}
    return some.gradients(truth, weight=weight.to(some["q"]))


def _joined(name: str, call: Call, places: list[slice], parts: list[dict[str, Tensor]], like: Tensor) -> Tensor:
    """One gradient of the whole from those of its rows: queries are concatenated, everything else is summed."""
    whole = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
    for place, part in zip(places, parts, strict=True):
        if call.sides.get(name) == "query":
            whole[:, :, place] += part[name]
        else:
            whole += part[name]
    return whole


CHECKS = (sizes_and_pairs, long_sequence)
