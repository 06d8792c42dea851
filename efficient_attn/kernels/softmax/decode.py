"""A few queries over a long cache, as in decoding: each key is read once, in the fastest way.

``fold``: torch's fused kernel, which splits keys into short blocks, is limited by its many small products, and runs one
head in each thread. ``parts``: the same over parts of a head's keys, if threads would be idle. ``batched``: two
products over all heads. ``by_head``: a head's whole cache through oneDNN, in two skinny products. ``pieces``: float32
in pieces that stay in a cache, for dtypes that the processor does not multiply. ``cpp``: decode.cpp, one pass in every
dtype, in which keys may be hidden; where it is built.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autotuning.autotuner import choose
from ..autotuning.candidates import Candidates, Tunable, TuningPoint
from ..custom_ops import have_numbers, make_op
from ..derivatives import vmap_serially, wants_gradient
from ..half_precision import has_native_products
from ..native.building import call, count_parts, is_available, make_integers
from ..products import has_onednn
from .merge import FusedInputs, FusedOptions, attend, join_parts

MAX_ROWS = 32  # above this its products are no longer small
MIN_KEY_ELEMENTS = 2**15  # numbers in a head's keys: with fewer, the overhead of calls decides, least with one call
LONG_KEY_ELEMENTS = 2**19  # by rule: numbers in a head's keys from which on oneDNN's products make up for its calls
PIECE_ELEMENTS = 2**17  # numbers of a piece of all heads' keys: half a MiB in float32
TUNED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # other dtypes were not timed
IDLE = "idle"  # suffix of kinds of calls that leave threads idle
MASKED = " masked"  # suffix of kinds with hidden keys, which only C++ supports, so that they are not timed


def attend_few(q: Tensor, k: Tensor, v: Tensor, scale: float, valid: Tensor | None = None) -> Tensor | None:
    """softmax(scale q k^T) v for few rows ``q [B, Hkv, R, D]`` over k, v ``[B, Hkv, M, D]``, without a gradient. None
    for calls that were not timed: of more rows, with a gradient, over few keys, or with hidden keys (see
    `attend_in_one_pass`) where C++ is not built."""
    supported = q.shape[2] <= MAX_ROWS and q.dtype in TUNED_DTYPES and q.device.type == "cpu"
    supported = supported and (valid is None or is_available("decode"))
    supported = supported and k.shape[2] * k.shape[3] >= MIN_KEY_ELEMENTS
    # with non-contiguous rows of the cache, as in [B, M, H, D] memory order, products take a hundred times as long
    supported = supported and all(x.stride()[2:] == (x.shape[3], 1) for x in (k, v)) and k.shape == v.shape
    if not supported or torch.compiler.is_compiling() or wants_gradient(q, k, v):
        return None
    heads = q.shape[0] * q.shape[1]
    idle = count_parts(heads) > 1 and all(_heads_in_order(x) for x in (k, v))
    kind = _format_kind(str(q.dtype).removeprefix("torch."), q.shape[2], idle)
    implementation = choose(DECODE, kind + MASKED * (valid is not None), heads, *q.shape[2:3], *k.shape[2:])
    if valid is not None:
        return attend_in_one_pass(q, k, v, scale, valid)
    return IMPLEMENTATIONS[implementation](q, k, v, scale)


def _attend_by_head(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    linear = torch.ops.mkldnn._linear_pointwise
    rows, out = q * scale, torch.empty_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            weights = linear(rows[b, h], k[b, h], None, "none", [], "")
            torch.softmax(weights, -1, out=weights)  # in place: new pages cost more than the arithmetic
            out[b, h] = linear(weights, v[b, h].T, None, "none", [], "")
    return out


def _attend_batched(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    weights = (q * scale) @ k.mT
    torch.softmax(weights, -1, out=weights)
    return weights @ v


def _attend_in_pieces(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    rows = q.float() * scale
    size = max(PIECE_ELEMENTS // (k.shape[0] * k.shape[1] * k.shape[3]), MAX_ROWS)
    weights = rows.new_empty(*q.shape[:3], k.shape[2])
    for part, target in zip(k.split(size, 2), weights.split(size, 3), strict=True):
        target.copy_(rows @ part.float().mT)
    torch.softmax(weights, -1, out=weights)
    out = torch.zeros_like(rows)
    for part, part_weights in zip(v.split(size, 2), weights.split(size, 3), strict=True):
        out += part_weights @ part.float()
    return out.to(q.dtype)


def _attend_in_parts(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    rows, (m, width) = q.flatten(0, 1)[:, None], k.shape[2:]
    count = count_parts(len(rows))
    size = m // count

    def view_parts(x: Tensor, first: int, count: int, size: int) -> Tensor:
        head_stride = x.stride(0 if x.shape[1] == 1 else 1)
        offset = x.storage_offset() + first * width
        return x.as_strided((len(rows), count, size, width), (head_stride, size * width, width, 1), offset)

    keys, values = (view_parts(x, 0, count, size) for x in (k, v))
    options = FusedOptions(causal=False, scale=scale)
    outs, sums = attend(FusedInputs(rows.expand(-1, count, -1, -1), keys, values, None), options)
    covered = count * size
    if covered < m:  # fewer keys are left over than there are parts
        keys, values = (view_parts(x, covered, 1, m - covered) for x in (k, v))
        rest = attend(FusedInputs(rows, keys, values, None), options)
        outs, sums = (torch.cat(both, 1) for both in zip((outs, sums), rest, strict=True))
    return join_parts(outs, sums).view(q.shape)


def _heads_in_order(x: Tensor) -> bool:
    """Whether ``x [B, Hkv, M, D]`` is a view with all its heads in one dimension."""
    return 1 in x.shape[:2] or x.stride(0) == x.shape[1] * x.stride(1)


IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "fold": lambda q, k, v, scale: F.scaled_dot_product_attention(q, k, v, scale=scale),
    "parts": _attend_in_parts,
    "batched": _attend_batched,
    "by_head": _attend_by_head,
    "pieces": _attend_in_pieces,
    "cpp": lambda q, k, v, scale: attend_in_one_pass(q, k, v, scale),
}


def _make_candidates(point: TuningPoint) -> Candidates:
    """The calls of a point, whose sizes are key-value heads, rows of each, keys and width."""
    heads, rows, keys, width = point.sizes
    dtype = getattr(torch, point.kind.split()[0])
    q, k = (torch.ones(1, heads, n, width, dtype=dtype) for n in (rows, keys))
    v, is_float32 = torch.ones_like(k), dtype == torch.float32
    supported = {"fold": True, "batched": is_float32, "by_head": is_float32 and has_onednn(), "pieces": not is_float32}
    supported |= {"parts": point.kind.endswith(IDLE), "cpp": is_available("decode")}
    return {name: partial(run, q, k, v, width**-0.5) for name, run in IMPLEMENTATIONS.items() if supported[name]}


def _choose_by_rule(point: TuningPoint) -> str:
    """C++ where it is built; else pieces in float32 if the processor does not multiply the dtype, which for bfloat16
    matters for single rows only; oneDNN's long products of grouped heads if its vectors are wider than a BLAS may use;
    else torch's kernel, in parts if threads would be idle."""
    if is_available("decode"):
        return "cpp"
    _, rows, keys, width = point.sizes
    name, fused = point.kind.split()[0], "parts" if point.kind.endswith(IDLE) else "fold"
    if name != "float32":
        emulated = not has_native_products(getattr(torch, name)) and (rows == 1 or name == "float16")
        return "pieces" if emulated else fused
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512" and has_onednn()
    return "by_head" if has_avx512 and rows > 1 and keys * width >= LONG_KEY_ELEMENTS else fused


def _list_points() -> tuple[TuningPoint, ...]:
    head_rows = ((8, 1), (4, 2), (2, 4))
    short, long = ([(*heads, keys, 64) for heads in head_rows] for keys in (1024, 8192))
    busy, idle = [*short, *long, (2, 4, 4096, 128)], [(1, 8, 8192, 64), (1, 1, 8192, 64), (1, 8, 1024, 64)]
    sizes = [*((size, False) for size in busy), *((size, True) for size in idle)]  # on one thread no call is idle: last
    kinds = product(sizes, ("float32", "bfloat16", "float16"))
    return tuple(TuningPoint(_format_kind(kind, size[1], leaves_idle), size) for (size, leaves_idle), kind in kinds)


def _format_kind(dtype: str, rows: int, idle: bool) -> str:
    """The kind of a call. One row is a kind of its own, because BLAS uses another routine for it; so are calls in which
    torch's fused kernel would leave threads idle."""
    return f"{dtype} {'row' if rows == 1 else 'rows'}{f' {IDLE}' if idle else ''}"


DECODE = Tunable(
    name="decode",
    implementations=tuple(IMPLEMENTATIONS),
    points=_list_points(),
    make_candidates=_make_candidates,
    rule=_choose_by_rule,
    is_available=lambda name: name != "cpp" or is_available("decode"),
    version=3,
)


def cpp_supports(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend_in_one_pass` supports rows ``q [B, Hkv, R, D]`` over k, v ``[B, Hkv, M, D or E]``."""
    supported = q.shape[2] <= MAX_ROWS and q.device.type == "cpu"
    return supported and k.stride(3) == v.stride(3) == 1 and not wants_gradient(q, k, v)


def attend_in_one_pass(q: Tensor, k: Tensor, v: Tensor, scale: float, valid: Tensor | None = None) -> Tensor:
    """softmax(scale q k^T) v as decode.cpp does it; no gradient. valid: bool, ``[B, M]``, the keys that are seen; rows
    that see none get zeros."""
    return (_call_cpp if have_numbers(q, k, v) else _decode_op)(q, k, v, scale, valid)


def _call_cpp(q: Tensor, k: Tensor, v: Tensor, scale: float, valid: Tensor | None) -> Tensor:
    dtype = torch.promote_types(q.dtype, torch.float32)  # of queries and sums
    rows, out = (q.to(dtype) * scale).contiguous(), q.new_empty(*q.shape[:3], v.shape[3], dtype=dtype)
    flags = None if valid is None else valid.contiguous()
    addresses = (ctypes.c_void_p(None if x is None else x.data_ptr()) for x in (rows, k, v, flags, out))
    strides = make_integers(*k.stride()[:3], *v.stride()[:3])
    call("decode", "decode", k, *addresses, strides, make_integers(*q.shape[:3], k.shape[2], q.shape[3], v.shape[3]))
    return out.to(q.dtype)


_decode_op = make_op("decode", _call_cpp, lambda q, k, v, scale, valid: q.new_empty(*q.shape[:3], v.shape[3]))
_decode_op.register_vmap(partial(vmap_serially, _decode_op))
