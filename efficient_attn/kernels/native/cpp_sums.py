"""Bidirectional linear attention in C++ (sums.cpp): sums over keys read by every query, and the gradients."""

import torch
from torch import Tensor

from ...feature_maps import FeatureMap, elu_plus_one, relu
from .building import call, contiguous_rows, count_parts, make_integers, pack_tensors

DTYPES = torch.float32, torch.bfloat16, torch.float16
MAPS = relu, elu_plus_one  # in the order of sums.cpp
PADDING = 16  # rows and columns of sums are a multiple of it, as it is of any vector's width


def attend(
    phi: FeatureMap, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, *, divides: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows ``[Bh, G, N, E]`` of float32, the sums of their weights ``[Bh, G, N, 1]``, and the sums over keys, padded: S
    ``[Bh, F', E']`` and z ``[Bh, F']``. q ``[Bh, G, N, D]``, k ``[Bh, M, D]``, v ``[Bh, M, E]``, valid ``[Bh, M]``.
    divides: by the sums of weights, or 1 where these are zero."""
    q, k, v = map(contiguous_rows, (q, k, v))
    parts = count_parts(len(k))
    part_sums = _make_sums(parts, k, v)
    _call("sum_keys", phi, divides, parts, v.shape[2], k, v, valid, *part_sums)
    kv, z = _add_parts(parts, part_sums)
    out = q.new_empty(*q.shape[:3], v.shape[2], dtype=torch.float32)
    totals = (q.new_empty if divides else q.new_zeros)(*q.shape[:3], 1, dtype=torch.float32)
    _call("read_sums", phi, divides, parts, v.shape[2], q, kv, z, out, totals)
    return out, totals, kv, z


def backward(
    phi: FeatureMap,
    grad: Tensor,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None],
    results: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    divides: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v. grad: of float32. tensors, results: what `attend` took and returned."""
    q, k, v, valid = tensors
    out, totals, kv, z = results
    q, k, v, grad = map(contiguous_rows, (q, k, v, grad))
    parts, width = count_parts(len(k)), v.shape[2]
    grad_q, grad_k, grad_v = (x.new_empty(x.shape) for x in (q, k, v))
    part_grads = _make_sums(parts, k, v)
    backward_tensors = (q, kv.mT.contiguous(), z, grad, out, totals, grad_q, *part_grads)
    _call("read_backward", phi, divides, parts, width, *backward_tensors)
    grad_kv, grad_z = _add_parts(parts, part_grads)
    key_tensors = (k, v, valid, grad_kv, grad_kv.mT.contiguous(), grad_z, grad_k, grad_v)
    _call("sum_backward", phi, divides, parts, width, *key_tensors)
    return grad_q, grad_k, grad_v


def _make_sums(parts: int, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The sums of no keys, for each head and part, padded."""
    count, (features, values) = len(k) * parts, (x.shape[2] + -x.shape[2] % PADDING for x in (k, v))
    return tuple(torch.zeros(size, dtype=torch.float32) for size in ((count, features, values), (count, features)))


def _add_parts(parts: int, sums: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return sums if parts == 1 else tuple(x.unflatten(0, (-1, parts)).sum(1) for x in sums)


def _call(
    name: str, phi: FeatureMap, divides: bool, parts: int, values: int, rows: Tensor, *others: Tensor | None
) -> None:
    """Call a function of the library with tensors ``[Bh, G, L, ..]``, ``[Bh, L, ..]`` or ``[Bh, ..]`` in its order; the
    first one has the rows that it goes over."""
    group = rows.shape[1] if rows.ndim == 4 else 1
    sizes = make_integers(len(rows), group, rows.shape[-2], rows.shape[-1], values, MAPS.index(phi), divides, parts)
    call("sums", name, rows, pack_tensors(rows, *others), sizes)
