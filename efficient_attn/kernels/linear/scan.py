"""Causal linear attention: a scan over stretches of positions, with one state of sums for everything before.

    S_t = S_(t-1) + phi(k_t) v_t^T  [F, E],    z_t = z_(t-1) + phi(k_t)  [F]
    out_t = phi(q_t)^T S_t / divisor(phi(q_t) . z_t)  [E]

`chunks` computes a stretch, and `cpp_scan` the same in C++, which is selected where it is built and keys have no
weights; for maps of few instructions it makes the features as well. No state is stored for positions or stretches: the
backward pass goes over them once in each direction and recomputes them. Shapes are those of `sums`.
"""

from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ...feature_maps import relu
from ..autotuning.autotuner import choose
from ..autotuning.candidates import GRADIENTS, Candidates, Tunable, TuningPoint, format_kind, make_calls
from ..custom_ops import have_numbers
from ..dense import widen
from ..derivatives import KernelFunction, differentiate_once, wants_gradient
from ..native import cpp_scan
from ..native.building import is_available
from ..native.cpp_sums import DTYPES, MAPS
from ..softmax.softmax_kernel import cut_range
from . import chunks, scan_op
from .chunks import CHUNK
from .feature_tape import FeatureTape
from .linear_config import KeyInputs, LinearConfig, SavedRows, divide, replace_zero_by_one
from .scan_state import ScanState
from .sums import KERNEL, N_KEYS, NO_PAST, Sums, split_arguments, start_sums

ROUNDED_ROWS = 512  # positions at a time whose rows are rounded to another dtype
TIMED_LENGTH = 512  # positions, whose number does not matter: time is that of each


def scan(config: LinearConfig, q: Tensor, keys: KeyInputs, past: Sums | None = None) -> tuple[Tensor, Sums]:
    """Query i over keys 0..i and what came before; N = M. Returns ``[Bh, G, N, E]`` and the sums over everything."""
    if torch.compiler.is_compiling():
        return scan_op.scan(config, q, keys, past)
    if not config.native and is_native(config, q, keys, past):
        config = replace(config, native=True)
    arguments = (config, q, *keys, *(past or NO_PAST), *config.parameters)
    out, *sums, _ = cast(tuple[Tensor, ...], _ScanFunction.apply(*arguments))
    return out, Sums(*sums)


def is_native(config: LinearConfig, q: Tensor, keys: KeyInputs, past: Sums | None = None) -> bool:
    """Whether the C++ kernel supports a call, and is selected for it."""
    weighted = keys.logs is not None or config.phi.scaled or config.decays
    if weighted or q.device.type != "cpu" or not have_numbers(q, keys.k, keys.v):
        return False
    tensors = (q, keys.k, keys.v, *config.parameters, *(() if past is None else (past.kv,)))
    kind = format_kind(config.widen(q[:0]).dtype, trains=wants_gradient(*tensors))
    sizes = len(q), q.shape[1], config.phi.width(q.shape[3]), keys.v.shape[2]
    return choose(SCAN, kind, *sizes) == "cpp"


def _make_candidates(point: TuningPoint) -> Candidates:
    """The calls of a point, whose sizes are key-value heads, query heads of each, features and columns of values."""
    heads, group, features, columns = point.sizes

    def compute(q: Tensor, k: Tensor, v: Tensor, *, native: bool) -> Tensor:
        config = LinearConfig(relu, replace_zero_by_one, native=native)
        return _ScanFunction.apply(config, q, k, v, None, None, *NO_PAST)[0]

    sizes = (heads, group, TIMED_LENGTH, features), (heads, TIMED_LENGTH, features), (heads, TIMED_LENGTH, columns)
    names = ("chunks", "cpp") if is_available("scan") else ("chunks",)
    return make_calls(point, sizes, {name: partial(compute, native=name == "cpp") for name in names})


def _list_points() -> tuple[TuningPoint, ...]:
    sizes = ((8, 1, 64, 64), (2, 4, 64, 64), (8, 1, 32, 32), (4, 1, 128, 128), (4, 1, 256, 64), (8, 1, 16, 16))
    return tuple(TuningPoint(f"float32{suffix}", size) for size in sizes for suffix in ("", GRADIENTS))


SCAN = Tunable(
    name="scan",
    implementations=("chunks", "cpp"),
    points=_list_points(),
    make_candidates=_make_candidates,
    rule=lambda point: "cpp" if is_available("scan") else "chunks",
    is_available=lambda name: name != "cpp" or is_available("scan"),
)


class _ScanFunction(KernelFunction):
    """``(config, q, *keys, *past, *parameters)``."""

    @staticmethod
    def forward(config: LinearConfig, q: Tensor, *arguments: Any) -> Any:
        keys, past = split_arguments(arguments)
        state = _make_state(config, keys, *(past or NO_PAST))
        if _is_whole(config, q, keys):
            out, totals = _attend_whole(config, q, keys, state)
            return out, *state.split(), state.reference, totals
        kernel, out, totals = cpp_scan if config.native else chunks, None, []
        for rows in _cut_stretches(config, q):
            x, stretch = config.both(q, keys, rows)
            if out is None:
                out = (x if config.wide_rows else q).new_empty(*q.shape[:3], keys.v.shape[2])
            out_rows = out[:, :, rows]
            in_place = config.divisor is None and out.dtype == x.dtype
            top, total = kernel.attend(x, stretch, state, out_rows if in_place else None)
            saved = divide(config, top, total, out_rows)
            if saved is not None:
                totals.append(saved.contiguous())  # not a view of a row's other results
        return out, *state.split(), state.reference, chunks.join_parts(totals, 2) if totals else None

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.config, *arguments = inputs
        out, _, _, reference, totals = output
        ctx.save_for_backward(*arguments[: 1 + N_KEYS + len(NO_PAST)], out, totals)
        ctx.mark_non_differentiable(*(x for x in (reference, totals) if x is not None))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad, grad_kv, grad_z, *_ = grads
        saved = ctx.saved_tensors  # read once: checkpointing allows no second read
        *_, out, _ = saved
        _, _, *needs = ctx.needs_input_grad
        gradients = partial(_gradients, ctx.config, needs[N_KEYS])
        grad = torch.zeros_like(out) if grad is None else grad
        return None, *differentiate_once(KERNEL, gradients, grad, grad_kv, grad_z, *saved)


def _gradients(
    config: LinearConfig, has_past: bool, grad: Tensor, grad_kv: Tensor | None, grad_z: Tensor | None, *saved: Any
) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_ScanFunction` but config."""
    q, *arguments, out, totals = saved
    keys, past = split_arguments(arguments)
    state, grad_state = _make_state(config, keys, *(past or NO_PAST)), _make_state(config, keys, grad_kv, grad_z)
    tape = FeatureTape(config)
    stretches, grad_logs = _cut_stretches(config, q), None
    if _is_whole(config, q, keys):
        rows, divides = (widen(grad), widen(out), totals), config.divisor is not None
        grad_q = cpp_scan.backward_query_rows(config.phi, q, keys, rows, state, divides=divides)
        grad_k, grad_v = cpp_scan.backward_key_rows(config.phi, q, keys, rows, grad_state, divides=divides)
    elif len(stretches) == 1 and not config.native:
        grads = SavedRows(grad, out, *config.divisors(totals)).divide_backward(stretches[0])
        x, stretch, backward = tape.record_both(q, keys, stretches[0])
        grad_x, grad_y, grad_v = chunks.backward(x, stretch, grads, state, grad_state, to_start=has_past)
        pairs = zip((q, keys.k, keys.logs, keys.v), (*backward(grad_x, grad_y), grad_v), strict=True)
        grad_q, grad_k, grad_logs, grad_v = (None if x is None or g is None else g.to(x.dtype) for x, g in pairs)
    else:
        saved_rows = SavedRows(grad, out, *config.divisors(totals))
        grad_q, references = _backward_queries(tape, q, keys, saved_rows, state)
        grad_k, grad_v, grad_logs = _backward_keys(tape, q, keys, saved_rows, references, grad_state)
    past_grads = grad_state.split() if has_past else (None, None)
    return grad_q, grad_k, grad_v, None, grad_logs, *past_grads, None, *tape.grad_parameters


def _attend_whole(config: LinearConfig, q: Tensor, keys: KeyInputs, state: ScanState) -> tuple[Tensor, Tensor]:
    """Divided rows and their sums of weights. Rows of another dtype than sums are written some at a time, so that few
    exist in both."""
    attend = partial(cpp_scan.attend_rows, config.phi, state=state, divides=config.divisor is not None)
    sums, _ = state.split()
    if config.wide_rows or q.dtype == sums.dtype:
        return attend(q, keys)
    out, totals = config.make_rows(q, sums), sums.new_empty(*q.shape[:3], 1)
    for rows in cut_range(q.shape[2], ROUNDED_ROWS):
        out[:, :, rows], totals[:, :, rows] = attend(q[:, :, rows], keys.rows(rows))
    return out, totals


def _is_whole(config: LinearConfig, q: Tensor, keys: KeyInputs) -> bool:
    """Whether C++ makes the features of a call and divides its rows, so that it is not cut into stretches."""
    simple = config.native and config.phi in MAPS and config.divisor in (None, replace_zero_by_one)
    return simple and q.dtype in DTYPES and q.dtype == keys.k.dtype == keys.v.dtype and not config.phi.exact


def _make_state(config: LinearConfig, keys: KeyInputs, kv: Tensor | None, z: Tensor | None, *others: Any) -> ScanState:
    """The state from sums, or from their gradients, of which those that are None are zero."""
    past = None
    if config.native or kv is not None or z is not None:  # C++ needs numbers
        zeros = start_sums(config, keys, None)
        past = Sums(zeros.kv if kv is None else kv, zeros.z if z is None else z, *others)
    divides = config.divisor is not None or config.native
    return ScanState(past, decays=config.decays, steady=config.steady, divides=divides, rates=config.rates)


def _cut_stretches(config: LinearConfig, q: Tensor) -> list[slice]:
    return config.cut(q, config.fit(CHUNK, q))


def _backward_queries(
    tape: FeatureTape, q: Tensor, keys: KeyInputs, saved_rows: SavedRows, state: ScanState
) -> tuple[Tensor, list[list[Tensor | None]]]:
    """First to last stretch. Returns the gradient, and each stretch's references before its chunks."""
    config, grad_q, stretch_references = tape.config, torch.empty_like(q), []
    kernel = cpp_scan if config.native else chunks
    for rows in _cut_stretches(config, q):
        _, backward = tape.record_queries(q, rows)
        stretch, grads = config.stretch(keys, rows), saved_rows.divide_backward(rows)
        grad_x, references = kernel.backward_queries(grads, stretch, state)
        grad_q[:, :, rows] = backward(grad_x)
        stretch_references.append(references)
    return grad_q, stretch_references


def _backward_keys(
    tape: FeatureTape,
    q: Tensor,
    keys: KeyInputs,
    saved_rows: SavedRows,
    stretch_references: list[list[Tensor | None]],
    grad_state: ScanState,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Last to first stretch, accumulating the gradient by the state."""
    config, grad_k, grad_v = tape.config, torch.empty_like(keys.k), torch.empty_like(keys.v)
    grad_logs = None if keys.logs is None else torch.empty_like(keys.logs)
    kernel, stretches = cpp_scan if config.native else chunks, _cut_stretches(config, q)
    for rows, references in zip(reversed(stretches), reversed(stretch_references), strict=True):
        x, _ = config.queries(q[:, :, rows], rows)
        stretch, backward = tape.record_keys(keys, rows)
        grads = saved_rows.divide_backward(rows)
        grad_y, grad_v[:, rows] = kernel.backward_keys(x, stretch, grads, grad_state, references)
        grad_k[:, rows], grad_a = backward(grad_y)
        if grad_logs is not None and grad_a is not None:
            grad_logs[:, rows] = grad_a
    return grad_k, grad_v, grad_logs
