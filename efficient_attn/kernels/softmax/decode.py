"""A few query rows over a long cache, as in decoding with grouped heads: each key is read once.

The fused kernel cuts keys into short blocks and is bound there by the cost of its many small products. Here a head's
whole cache goes through oneDNN at once, in two skinny products; or through decode.cpp, in one pass, where somebody
asked for what is built on first use.
"""

from __future__ import annotations

import ctypes
from functools import partial

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ..derivatives import one_by_one
from ..native.building import library
from ..products import on_onednn
from ..traced import make_op, transformed

LONG = 2**19  # numbers in a head's keys: with fewer the fused kernel's single call wins over oneDNN's
ROWS = 32  # above this its products are no longer small
NATIVE = (torch.float32, torch.float64)


def why_no_native() -> str | None:
    """Why the kernel in C++ cannot run here; None when it can. Builds it, the first time."""
    return library("decode")[1]


def serves(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend_few` may and should run: rows ``q [B, Hkv, R, D]`` over keys ``[B, Hkv, M, D]``."""
    fits = 1 < q.shape[2] <= ROWS and k.shape[2] * k.shape[3] >= LONG and on_onednn(q)
    # with a cache whose rows lie apart, as in [B, M, H, D] memory order, oneDNN takes a hundred times as long
    fits = fits and all(x.stride()[2:] == (x.shape[3], 1) for x in (k, v))
    return fits and not _wants_gradient(q, k, v)


def attend_few(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(scale q k^T) v for q ``[B, Hkv, R, D]``, k, v ``[B, Hkv, M, D]``; no gradient."""
    linear = torch.ops.mkldnn._linear_pointwise
    rows, out = q * scale, torch.empty_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            weights = linear(rows[b, h], k[b, h], None, "none", [], "")
            torch.softmax(weights, -1, out=weights)  # in place: fresh pages cost more than the arithmetic
            out[b, h] = linear(weights, v[b, h].T, None, "none", [], "")
    return out


def native_serves(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend_in_one_pass` knows such rows ``q [B, Hkv, R, D]`` over k, v ``[B, Hkv, M, D or E]``."""
    fits = q.shape[2] <= ROWS and q.dtype in NATIVE and q.device.type == "cpu"
    return fits and k.stride(3) == v.stride(3) == 1 and not _wants_gradient(q, k, v)


def attend_in_one_pass(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(scale q k^T) v as decode.cpp does it; no gradient."""
    return (_op if torch.compiler.is_compiling() or transformed() else _call)(q, k, v, scale)


def _call(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    found, reason = library("decode")
    if found is None:
        raise UnsupportedError(f"no kernel in C++: {reason}")
    rows = (q * scale).contiguous()
    out = q.new_empty(*q.shape[:3], v.shape[3])
    sizes = (ctypes.c_int64 * 6)(*q.shape[:3], k.shape[2], q.shape[3], v.shape[3])
    run = found.decode_double if q.dtype == torch.float64 else found.decode_float
    run(
        *(ctypes.c_void_p(x.data_ptr()) for x in (rows, k, v, out)),
        (ctypes.c_int64 * 6)(*k.stride()[:3], *v.stride()[:3]),
        sizes,
        ctypes.c_int64(torch.get_num_threads()),
    )
    return out


_op = make_op("decode", _call, lambda q, k, v, scale: q.new_empty(*q.shape[:3], v.shape[3]))
_op.register_vmap(partial(one_by_one, _op))


def _wants_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
