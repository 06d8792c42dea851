"""Half precision on CPUs: in its own dtype if the processor multiplies it, else in float32 inside a kernel.

Without hardware support torch emulates bfloat16 and float16: on an AMD Zen 3 at 3 GFLOP/s instead of float32's 60.
Kernels that compute in float32 cast their inputs and outputs, and save the original inputs for the backward pass.
"""

from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import Tensor

from .autotuning.autotuner import choose
from .autotuning.candidates import Candidates, Tunable, TuningPoint

HALF_DTYPES = (torch.bfloat16, torch.float16)
TIMED_MULTIPLY_ADDS = 2**21  # multiply-adds of a product that is timed: fractions of a millisecond where hardware helps
LARGE_TILE_ROWS = 256  # by rule: rows of a tile from which torch's backward pass uses the hardware


def fused_dtype(x: Tensor, operation: str, rows: int, keys: int) -> torch.dtype:
    """The dtype in which torch's fused kernel should attend from so many rows to so many keys at a time. operation:
    ``forward`` or ``backward``. x: one of the tensors, whose dtype is returned unless it has half precision."""
    return _choose_dtype(x, operation, rows, keys, x.shape[-1])


def product_dtype(x: Tensor, rows: int, inner: int, columns: int) -> torch.dtype:
    """The dtype for a product of x with these sizes, whose result has x's dtype."""
    return _choose_dtype(x, "product", rows, inner, columns)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of one dtype, with a gradient: the sums of half precision in float32, as hardware does it."""
    compute_dtype = product_dtype(a, a.shape[-2], a.shape[-1], b.shape[-1])
    return a @ b if compute_dtype == a.dtype else (a.to(compute_dtype) @ b.to(compute_dtype)).to(a.dtype)


def has_native_products(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies a half-precision dtype, as far as torch knows."""
    if dtype == torch.bfloat16:
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.cpu._is_amx_fp16_supported()


def _choose_dtype(x: Tensor, operation: str, *sizes: int) -> torch.dtype:
    if x.dtype not in HALF_DTYPES or x.device.type != "cpu":
        return x.dtype
    kind = f"{str(x.dtype).removeprefix('torch.')} {operation}"
    return x.dtype if choose(HALF, kind, *sizes) == "own" else torch.float32


def _make_candidates(point: TuningPoint) -> Candidates:
    """The calls of a point: of the fused kernel with rows, keys and width, or of a product with its three sizes."""
    name, operation = point.kind.split()
    make_call = _make_product_call if operation == "product" else _make_fused_call
    return {"own": make_call(point, getattr(torch, name)), "float32": make_call(point, torch.float32)}


def _make_product_call(point: TuningPoint, compute_dtype: torch.dtype) -> Callable[[], object]:
    rows, width, columns = point.sizes
    dtype = getattr(torch, point.kind.split()[0])
    heads = max(TIMED_MULTIPLY_ADDS // (rows * width * columns), 1)
    a, b = torch.ones(heads, rows, width, dtype=dtype), torch.ones(heads, width, columns, dtype=dtype)
    return lambda: (a.to(compute_dtype) @ b.to(compute_dtype)).to(dtype)


def _make_fused_call(point: TuningPoint, compute_dtype: torch.dtype) -> Callable[[], object]:
    """The fused kernel: operands are cast once for a pass, and read by many tiles."""
    rows, keys, width = point.sizes
    heads = max(TIMED_MULTIPLY_ADDS // (2 * rows * keys * width), 1)
    q, k = (torch.ones(1, heads, length, width, dtype=compute_dtype) for length in (rows, keys))
    if point.kind.endswith("forward"):
        return partial(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, q, k, k)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return partial(backward, q, q, k, k, q, torch.zeros(1, heads, rows), 0.0, False)  # q for gradient and output too


def _choose_by_rule(point: TuningPoint) -> str:
    """The own dtype if the processor multiplies it; torch's backward pass only benefits in large tiles."""
    name, operation = point.kind.split()
    is_small = operation == "backward" and point.sizes[0] < LARGE_TILE_ROWS
    return "own" if has_native_products(getattr(torch, name)) and not is_small else "float32"


def _list_points() -> tuple[TuningPoint, ...]:
    tiles = ((32, 256, 64), (512, 256, 64), (128, 256, 64), (1024, 256, 64), (64, 64, 32), (512, 256, 128))
    products = ((256, 64, 64), (256, 2048, 64), (64, 256, 256))
    tile_combinations = product(tiles, HALF_DTYPES, ("forward", "backward"))
    combinations = [*product(products, HALF_DTYPES, ("product",)), *tile_combinations]
    return tuple(
        TuningPoint(f"{str(dtype).removeprefix('torch.')} {operation}", sizes)
        for sizes, dtype, operation in combinations
    )


HALF = Tunable(
    name="half",
    implementations=("own", "float32"),
    points=_list_points(),
    make_candidates=_make_candidates,
    rule=_choose_by_rule,
    version=2,
)
