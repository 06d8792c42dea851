"""Combinations of sizes, dtypes and masks: a random design that covers every pair, and one long sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from time import perf_counter

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...errors import UnsupportedError, is_out_of_memory
from ..call_costs import estimate_seconds, is_affordable
from ..call_factors import (
    QUERY_PADDING,
    TOGETHER,
    DesignedCall,
    Factors,
    list_factors,
)
from ..check import CheckFailure, check
from ..covering_design import SHRINK_S, Case, cover, cover_levels, iterate_pairs, shrink
from ..mechanism_call import Call
from ..probing import MAX_REFERENCE_S, estimate_reference_s, too_slow
from ..subject import Subject
from ..tensor_comparison import assert_all_close
from .reference import no_fast_backend

LONG = 4133  # more than 4,096, and a prime number
LONG_WIDTHS = (64, 16, 128)
LONG_SPANS = slice(0, 3), slice(2046, 2050), slice(LONG - 3, LONG)  # rows that are compared
BUDGET_S = 1.8  # of the cases that a check draws: seconds, roughly
ROUNDINGS = 32  # a result may differ by so many times what rounding the inputs changes
MAX_ELEMENTS, MAX_ELEMENTS_THOROUGH = 2**24, 2**27  # numbers in the tensors of a case
MAX_REFERENCE_THOROUGH_S = 120.0
MANY_POSITIONS, MANY_HEADS = 2048, 2048  # of a sequence and of a batch, from which combinations count as levels


def _list_combinations(case: Case) -> Iterator[str]:
    """What the sizes of a case are together with, of combinations that batches of a model have."""
    (heads, kv_heads), batch = case["heads"], case["batch"]
    if batch * heads > MANY_HEADS:
        yield "many heads"
    if batch > 2 and case["gradient"] in ("all", "parameters"):
        yield "all gradients of a large batch"
    if heads >= 40 and max(case["lengths"]) > 1 and case["gradient"] in ("all", "inputs"):
        yield "all gradients of many heads"
    if max(case["lengths"]) < MANY_POSITIONS:
        return
    if batch > 1:
        yield "long batch"
        if case["padding"] not in QUERY_PADDING:
            yield "long padded batch"
    if heads != kv_heads:
        yield "long, grouped"
    if case["dtype"].itemsize < 4:
        yield f"long, {case['dtype']}"
    if case["gradient"] != "nothing":
        yield "long, with gradients"


@lru_cache(maxsize=64)
def draw_cases(subject: Subject) -> tuple[Factors, tuple[Case, ...]]:
    """The factors of a mechanism, and the cases to compare: of every pair of levels if thorough, else of every level
    that the budget allows."""
    factors = list_factors(subject)
    elements = MAX_ELEMENTS_THOROUGH if subject.thorough else MAX_ELEMENTS

    def design(case: Case) -> DesignedCall:
        return DesignedCall(factors.options[case["options"]], case)

    def cost(case: Case) -> float:
        return estimate_seconds(design(case))

    def allowed(case: Case) -> bool:
        return factors.allows(case) and is_affordable(design(case), elements)

    if subject.thorough:
        cases = cover(factors.levels, seed=subject.seed, together=TOGETHER, allowed=allowed, cost=cost)
        cases.sort(key=cost)  # so that a failure is found early
    else:
        cases = cover_levels(
            factors.levels, seed=subject.seed, allowed=allowed, cost=cost, also=_list_combinations, budget=BUDGET_S
        )
    return factors, tuple(cases)


class ReferenceTooLarge(UnsupportedError):
    """A case whose reference takes more memory than there is."""


def _check_case(factors: Factors, case: Case) -> None:
    """Compare every backend's output and gradients with the float64 reference, within the dtype's tolerance."""
    subject = factors.options[case["options"]]
    designed, dtype = DesignedCall(subject, case), case["dtype"]
    call, shape = designed.call, designed.shape
    try:
        want = designed.evaluate(call.change(Tensor.double), subject.truth(shape, dtype), designed.run_rows)
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise ReferenceTooLarge(str(error)) from error
        raise
    terms = designed.terms
    if not subject.traits.linear_values:  # a norm amplifies small values, and the products that gradients sum
        terms *= max(1.0, want["output"].abs().max().item() / (designed.values or 1.0))
    # larger gradients cannot be represented
    want = {name: x for name, x in want.items() if name == "output" or x.abs().max() < torch.finfo(dtype).max / 4}
    for backend in subject.backends_for(dtype):
        attn = subject.make(shape, backend=backend, dtype=dtype)
        got = designed.evaluate(call, attn, designed.run_whole)
        compare = partial(assert_all_close, got, want, backend, dtype=dtype)
        try:
            compare(values=designed.values, terms=terms)
        except AssertionError:  # perhaps of scores so large that rounding the inputs changes as much
            compare(values=designed.values, terms=terms, slack=_find_slack(designed, want))


def _is_slow(factors: Factors, case: Case) -> bool:
    """Whether the reference of a case would take long on this machine: that of an author may be a loop."""
    subject = factors.options[case["options"]]
    designed = DesignedCall(subject, case)
    rows = sum(span.stop - span.start for span in designed.spans) if subject.traits.rows_alone else designed.shape.n
    passes = 1 if case["gradient"] == "nothing" else 3
    seconds = passes * estimate_reference_s(subject, replace(designed.shape, n=rows))
    return seconds > (MAX_REFERENCE_THOROUGH_S if subject.thorough else MAX_REFERENCE_S)


def _find_slack(designed: DesignedCall, want: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For each row, several times what the reference changes when all inputs change by a rounding error."""
    call, dtype, changes = designed.call, designed.case["dtype"], dict[str, Tensor]()
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)

        def round_inputs(x: Tensor, generator: torch.Generator = generator) -> Tensor:
            noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
            return x.double() * (1 + torch.finfo(dtype).eps * noise)

        truth = designed.subject.truth(designed.shape, dtype)
        others = designed.evaluate(call.change(round_inputs), truth, designed.run_rows)
        for name, x in want.items():
            change = (others[name] - x).abs() * ROUNDINGS
            change = change.amax(-1, keepdim=True) if x.ndim else change
            changes[name] = torch.maximum(changes[name], change) if name in changes else change
    return changes


def _find_error(factors: Factors, case: Case) -> Exception | None:
    """Why a case fails; None if it passes, or is one that the mechanism refuses."""
    try:
        _check_case(factors, case)
    except UnsupportedError:
        return None
    except Exception as error:
        return error.with_traceback(None)
    return None


def _opt_outs(designed: DesignedCall, error: Exception) -> tuple[str, ...]:
    """The declarations with which the case would not be tested."""
    if is_out_of_memory(error):
        return ()
    s, case = designed.shape, designed.case
    needs = (
        ("grouped", s.heads != s.kv_heads),
        ("cross", s.n != s.m or case["start"] is not None),
        ("padding", case["padding"] not in QUERY_PADDING),
        ("causal", case["causal"]),
        ("gradient", "gradient" in str(error)),
    )
    return tuple(f"{trait}=False" for trait, is_needed in needs if is_needed)


@check(skip_reason=no_fast_backend)
def sizes_and_pairs(subject: Subject) -> str | None:
    """Values and gradients equal the reference at every size, dtype, mask, memory order and option, in combinations
    that are drawn by seed, or with every pair of them if the subject is thorough."""
    factors, cases = draw_cases(subject)
    assert factors.levels["width"], f"it cannot be created for any of these widths: {factors.left_out[0]}"
    subject.met.clear()
    left_out = 0
    for case in cases:
        if _is_slow(factors, case):
            left_out += 1
            continue
        try:
            _check_case(factors, case)
        except ReferenceTooLarge:
            left_out += 1
            continue
        except UnsupportedError:  # a size that it refuses
            continue
        except Exception as failure:
            error = failure.with_traceback(None)  # its frames hold the tensors of the case
        else:
            subject.met.append(case)
            continue
        start = perf_counter()
        case = shrink(case, factors.levels, lambda simpler: _find_error(factors, simpler) is not None)
        kind = "smallest failing input" if perf_counter() - start < SHRINK_S else "failing input"
        error = _find_error(factors, case) or error
        designed = DesignedCall(factors.options[case["options"]], case)
        raise CheckFailure(
            f"{kind}: {designed.describe()} (drawn by seed {subject.seed}): "
            f"{'' if isinstance(error, AssertionError) else type(error).__name__ + ': '}{error}",
            _opt_outs(designed, error),
        )
    refused, notes = len(cases) - len(subject.met) - left_out, list(factors.left_out)
    for count, reason in ((refused, "are refused"), (left_out, "are left out: their reference is too slow or large")):
        if count:
            notes.append(f"{count} of {len(cases)} drawn calls {reason}")
    if not subject.thorough and (missing := _list_missing(factors, subject.met)):
        notes.append(f"with another --seed or --thorough: {missing}")
    return "; ".join(notes) or None


def _list_missing(factors: Factors, met: Sequence[Case]) -> str:
    """The levels that no compared case has."""
    pairs = {pair for case in met for pair in case.items()}
    levels = [(name, level) for name, values in factors.levels.items() for level in values]
    return ", ".join(f"{name}={level}" for name, level in levels if (name, level) not in pairs)


def list_coverage(subject: Subject) -> Iterator[tuple[str, str, str, str, int]]:
    """Every pair of levels that an allowed call can have, and the number of compared calls that have it."""
    _, cases = draw_cases(replace(subject, thorough=True))
    counts = Counter(pair for case in subject.met for pair in iterate_pairs(case))
    for pair in dict.fromkeys(pair for case in (*cases, *subject.met) for pair in iterate_pairs(case)):
        (factor, level), (other, other_level) = pair
        yield factor, str(level), other, str(other_level), counts[pair]


@check(skip_reason=no_fast_backend)
def long_sequence(subject: Subject) -> str | None:
    """Of a sequence beyond 4,096 positions, rows at the start, in the middle and at the end, and their gradients, equal
    the reference."""
    kv_heads, single_rows = subject.attn.kv_heads or 1, subject.traits.rows_alone
    width = LONG_WIDTHS[subject.seed % len(LONG_WIDTHS)]
    shape = subject.shape(LONG, batch=1, heads=kv_heads, kv_heads=kv_heads, head_dim=width, value_dim=width)
    if reason := too_slow(subject, replace(shape, n=10) if single_rows else shape):
        return reason
    run, run_reference = (_run_whole, _run_spans) if single_rows else (Call.run, Call.run)
    for causal in subject.causalities:
        call = subject.draw(shape, mask=Mask(causal=causal))
        # without single rows gradients are not compared: the reference's backward pass would take too long
        graph = subject.traits.gradient and single_rows and causal == subject.causalities[-1]
        with torch.set_grad_enabled(graph):
            exact, truth = call.change(Tensor.double), subject.truth(shape, subject.dtype)
            want = subject.evaluate(exact, truth, gradients=graph, run=run_reference)
            for backend in subject.backends_for(subject.dtype):
                got = subject.evaluate(call, subject.make(shape, backend=backend), gradients=graph, run=run)
                assert_all_close(got, want, f"{backend}, N={LONG}, causal={causal}", dtype=subject.dtype)
    return None if single_rows else "single rows cannot be computed: values only"


def _run_whole(call: Call, attn: Attention) -> Tensor:
    """Rows of the output of a whole call."""
    out = call.run(attn)
    return torch.cat([out[:, :, span] for span in LONG_SPANS], 2)


def _run_spans(call: Call, attn: Attention) -> Tensor:
    """The same rows, computed alone."""
    spans = [call.under(replace(call.mask, query_start=span.start)).queries(span) for span in LONG_SPANS]
    return torch.cat([rows.run(attn) for rows in spans], 2)
