"""Decode steps on CUDA in one Triton kernel (triton_kernels.py), for states of float32: of linear attention and of
recurrences. The state is updated in place, as in torch.

Where it is not chosen, steps run in torch: without Triton, with ``EFFICIENT_ATTN_NATIVE=off``, under torch.compile,
which fuses a step itself, in transformations of torch.func, and while a CUDA graph is captured, because a first call
compiles the kernel, which a capture does not allow.
"""

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...feature_maps import FeatureMap, elu_plus_one, relu, scaled_identity
from ..autotuning import autotuner
from ..custom_ops import have_numbers
from ..linear.linear_config import Divisor, KeyInputs, replace_zero_by_one
from .building import VARIABLE

DTYPES = torch.float32, torch.bfloat16, torch.float16  # of inputs
MAPS = relu, elu_plus_one, scaled_identity  # in the order of triton_kernels.py
MAX_GROUP = 64  # query heads of a key-value head, whose rows a program holds
MAX_WIDTH = 256  # columns of a state, and rows of a recurrence's
MAX_FEATURES = 1024  # rows of sums, which a program goes over: with more, torch's kernels use more of the GPU
MIN_CAPABILITY = 8, 0  # of GPUs that Triton supports
TILE = 4096  # numbers of a state that a program's 128 threads hold
MIN_BLOCK, MAX_BLOCK = 16, 64


def is_chosen(state: Tensor, max_rows: int, q: Tensor, *others: Tensor | None) -> bool:
    """Whether a step of a state ``[Bh, F, E]`` with queries ``[Bh, G, 1, D]`` runs in Triton. max_rows: the largest F.
    others: its further tensors."""
    if state.device.type != "cuda" or state.dtype != torch.float32:
        return False
    inputs = [q, *(x for x in others if x is not None)]
    supported = have_numbers(state, *inputs) and state.is_contiguous() and min(*state.shape, *q.shape) > 0
    supported = supported and state.shape[1] <= max_rows and state.shape[2] <= MAX_WIDTH and q.shape[1] <= MAX_GROUP
    supported = supported and all(x.dtype in DTYPES and x.device == state.device for x in inputs)
    supported = supported and (torch.is_inference_mode_enabled() or not state.is_inference())  # torch refuses the write
    # in this order: where it is not known yet whether Triton runs, a kernel is compiled, which a capture does not allow
    return supported and not torch.cuda.is_current_stream_capturing() and not why_no_triton(state.device)


@cache
def why_no_triton(device: torch.device) -> str | None:
    """Why Triton does not run on a GPU; None if it does. The first call compiles and runs a step."""
    if autotuner.is_off(VARIABLE):
        return f"{VARIABLE} is off"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return f"Triton needs a GPU of compute capability {'.'.join(map(str, MIN_CAPABILITY))} or newer"
    number = torch.ones(1, 1, 1, device=device)
    try:
        step_state(number[None], number, number, None, None, number.clone())
    except Exception as error:  # of many kinds: no C compiler, no driver, or a version of Triton without this GPU
        return f"Triton cannot run its kernels: {' '.join(f'{type(error).__name__}: {error}'.split())}"
    return None


def step_sums(
    phi: FeatureMap | None,
    q: Tensor,
    keys: KeyInputs,
    past: tuple[Tensor, Tensor, Tensor | None],
    *,
    divisor: Divisor | None,
    decays: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The rows ``[Bh, G, 1, E]`` of a step and the reference of the sums after it. Of other divisors than
    `replace_zero_by_one`, the rows are numerators of float32, and there are sums of weights ``[Bh, G, 1, 1]``.

    phi: one of `MAPS`; None if q and ``keys.k`` are features. ``keys.logs``: with the logarithms of features' factors.
    past: kv and z, which are updated, and their reference, which is not. dtype: of divided rows.
    """
    kv, z, reference = past
    heads, features, columns = kv.shape
    divides, logs = divisor is replace_zero_by_one, keys.logs
    totals = None if divisor is None or divides else kv.new_empty(*q.shape[:3], 1)
    out = kv.new_empty(*q.shape[:3], columns, dtype=dtype if totals is None else torch.float32)
    next_reference, strides, weighted = reference, (0, 0), False
    if logs is not None and reference is not None:
        next_reference, strides, weighted = reference.new_empty(heads), (logs.stride(0), reference.stride(0)), True
    block_e = _round_up(columns, MAX_BLOCK if divisor is None else MAX_WIDTH)
    block_f = _round_up(features, min(MAX_BLOCK, TILE // block_e))
    tensors = *(x.contiguous() for x in (q, keys.k, keys.v)), logs, kv, z, reference, next_reference, out, totals
    _launch(
        "step_sums",
        (heads, -(-columns // block_e)),
        (*tensors, *strides, features, columns, q.shape[1], float(features**-0.25)),
        MAP=len(MAPS) if phi is None else MAPS.index(phi),
        WEIGHTED=weighted,
        DECAYS=decays,
        SUMS_WEIGHTS=divisor is not None,
        DIVIDES=divides,
        BLOCK_F=block_f,
        BLOCK_E=block_e,
        BLOCK_G=_round_up(q.shape[1], MAX_GROUP, 1),
    )
    _mark_written(kv, z)
    return out, totals, next_reference


def step_state(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, state: Tensor) -> Tensor:
    """The rows ``[Bh, G, 1, E]`` of a step of a recurrence, whose state ``[Bh, D, E]`` is updated. log_decay ``[Bh, 1,
    1 or D]``, beta ``[Bh, 1]``."""
    heads, width, columns = state.shape
    out = q.new_empty(*q.shape[:3], columns)
    block_d = _round_up(width, MAX_WIDTH)
    block_e = _round_up(columns, min(MAX_BLOCK, TILE // block_d))
    tensors = (None if x is None else x.contiguous() for x in (q, k, v, log_decay, beta))
    _launch(
        "step_state",
        (heads, -(-columns // block_e)),
        (*tensors, state, out, width, columns, q.shape[1], float(width**-0.5)),
        DECAYS=log_decay is not None,
        BY_CHANNEL=log_decay is not None and log_decay.shape[2] > 1,
        DELTA=beta is not None,
        BLOCK_D=block_d,
        BLOCK_E=block_e,
        BLOCK_G=_round_up(q.shape[1], MAX_GROUP, 1),
    )
    _mark_written(state)
    return out


def _round_up(size: int, largest: int, smallest: int = MIN_BLOCK) -> int:
    """The size of a block: a power of two, as Triton requires."""
    return min(max(1 << (size - 1).bit_length(), smallest), largest)


def _launch(name: str, grid: tuple[int, int], arguments: tuple[Any, ...], **constants: int) -> None:
    from . import triton_kernels

    with torch.cuda.device_of(arguments[0]):  # Triton launches on the present device
        getattr(triton_kernels, name)[grid](*arguments, **constants)
    autotuner.record("step", "triton")


def _mark_written(*tensors: Tensor) -> None:
    """As torch's operations in place do, so that a backward pass that has saved a state refuses to use it."""
    torch.autograd.graph.increment_version([x for x in tensors if not x.is_inference()])
