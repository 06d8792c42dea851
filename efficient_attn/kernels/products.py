"""Matrix products of many heads: all in one call of torch, or one head after another through oneDNN.

torch's BLAS may not use this processor's vector instructions; oneDNN does, but has no product of many heads. On an AMD
Zen 5 oneDNN is twice as fast for large matrices, on a Zen 3 never.
"""

from functools import cache
from itertools import product

import torch
from torch import Tensor

from .autotuning.autotuner import choose
from .autotuning.candidates import Candidates, Tunable, TuningPoint
from .derivatives import is_followed

# numbers of the larger operand at which candidates are timed: as many as kernels use at a time
OPERAND_ELEMENTS = 2**18
LARGE_WIDTH = 128  # by rule: the smallest width of both factors from which oneDNN's rate compensates for its calls


def multiply_rows(x: Tensor, w: Tensor) -> Tensor:
    """``x [B, R, K] @ w [B, K, C]``; no gradient. oneDNN would first copy an x whose rows are columns in memory."""
    return _multiply_rows_by_head(x, w) if x.stride(2) == 1 and _choose_by_head("rows", x, *w.shape) else x @ w


def add_products(total: Tensor, x: Tensor, y: Tensor) -> None:
    """Add ``x^T y`` of ``x [B, R, K], y [B, R, C]`` to ``total [B, K, C]``; no gradient."""
    if _choose_by_head("sums", x, *total.shape):
        _add_products_by_head(total, x, y)
    else:
        total.baddbmm_(x.mT, y)


def add_matrix_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add ``a @ b`` of two matrices to ``total``; no gradient."""
    if _choose_by_head("flat", a[None], 1, *b.shape):
        total += multiply_onednn(a, b)
    else:
        total.addmm_(a, b)


def _multiply_rows_by_head(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([multiply_onednn(a, b) for a, b in zip(x, w, strict=True)])


def _add_products_by_head(total: Tensor, x: Tensor, y: Tensor) -> None:
    for a, b, target in zip(x, y, total, strict=True):
        if a.shape[1] < b.shape[1]:  # the narrower one is turned: that is a copy
            target += multiply_onednn(a.mT, b)
        else:
            target += multiply_onednn(b.mT, a).mT


def multiply_onednn(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of two matrices through oneDNN; no gradient."""
    # with non-contiguous rows oneDNN would take a thousand times as long
    if not (b.is_contiguous() or b.mT.is_contiguous()):
        b = b.contiguous()
    return torch.ops.mkldnn._linear_pointwise(a, b.mT, None, "none", [], "")


def project_onto(x: Tensor, directions: Tensor) -> Tensor:
    """Products ``[.., m]`` of ``x [.., D]`` with ``directions [m, D]``, with a gradient."""
    return x @ directions.mT if is_followed((x, directions)) else combine_directions(x, directions.mT)


def combine_directions(x: Tensor, directions: Tensor) -> Tensor:
    """``x [.., m] @ directions [m, D]``; no gradient."""
    rows = x.reshape(-1, x.shape[-1])
    by_head = _choose_by_head("flat", rows[None], 1, *directions.shape)
    out = multiply_onednn(rows, directions) if by_head else rows @ directions
    return out.view(*x.shape[:-1], directions.shape[-1])


def _choose_by_head(kind: str, x: Tensor, heads: int, inner: int, columns: int) -> bool:
    """Whether oneDNN multiplies one head after another; compiled code uses the compiler's products."""
    supported = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()
    return supported and has_onednn() and choose(PRODUCTS, kind, heads, x.shape[1], inner, columns) == "by_head"


@cache
def has_onednn() -> bool:
    """Whether torch has oneDNN's product with a weight."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _make_candidates(point: TuningPoint) -> Candidates:
    """The calls of a point, whose sizes are heads, rows, inner width and columns."""
    heads, rows, inner, columns = point.sizes
    x, w = torch.ones(heads, rows, inner), torch.ones(heads, inner, columns)
    if point.kind == "sums":
        y = torch.ones(heads, rows, columns)
        candidates = {"batched": lambda: w.baddbmm_(x.mT, y), "by_head": lambda: _add_products_by_head(w, x, y)}
    elif point.kind == "rows":
        candidates = {"batched": lambda: x @ w, "by_head": lambda: _multiply_rows_by_head(x, w)}
    else:
        flat, matrix = x[0], w[0].mT.contiguous()
        candidates = {"batched": lambda: flat @ matrix.mT, "by_head": lambda: multiply_onednn(flat, matrix.mT)}
    return candidates if has_onednn() else {"batched": candidates["batched"]}


def _choose_by_rule(point: TuningPoint) -> str:
    """One head after another if oneDNN has wider vectors than a BLAS may use, and matrices are large."""
    _, rows, inner, columns = point.sizes
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    is_large = rows >= LARGE_WIDTH and (point.kind == "flat" or min(inner, columns) >= LARGE_WIDTH)
    return "by_head" if has_avx512 and is_large else "batched"


def _list_points() -> tuple[TuningPoint, ...]:
    """As many rows as give an operand of `OPERAND_ELEMENTS` numbers, and few: the most frequent sizes first."""
    widths = ((64, 64), (32, 32), (128, 128), (256, 64), (64, 256))
    points = [
        TuningPoint(kind, (heads, OPERAND_ELEMENTS // (heads * max(factor_widths)), *factor_widths))
        for factor_widths, heads, kind in product(widths, (4, 32, 1), ("rows", "sums"))
    ]
    points += [TuningPoint("flat", (1, rows, width, 256)) for width in (64, 32, 128) for rows in (1024, 128)]
    return tuple(points)


PRODUCTS = Tunable(
    name="products",
    implementations=("batched", "by_head"),
    points=_list_points(),
    make_candidates=_make_candidates,
    rule=_choose_by_rule,
)
