"""torch's fused attention for plain tensors, with our own backward pass where torch's is slow or large.

Half precision: torch's backward pass of bfloat16 takes six times as long as float32's if the processor does not
multiply it. Here q, k and v are cast for a pass, forward and backward, and saved in their own dtype. Grouped heads: the
fused kernel accepts shared keys with stride zero, but its backward pass returns their gradients for every head, which
autograd sums: twice the keys repeated for each head. Here the backward pass processes some heads of a group at a time.
Later versions of that kernel support groups, one key-value head in each thread, which is used if it keeps all busy.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..custom_ops import in_functorch_transform
from ..derivatives import wants_gradient
from ..half_precision import HALF_DTYPES, fused_dtype
from . import merge, sdpa_kernels
from .merge import FusedInputs, FusedOptions
from .sdpa_kernels import IMPLEMENTATIONS, use_kernel
from .softmax_kernel import SavedSoftmax, SoftmaxKernel, cut_range

MIN_FLATTENED_ELEMENTS = 2**18  # numbers of queries and keys from which on a copy costs more than a few views
GROUP_PARTS = 4  # of a group's heads at least: their gradients are then half of the keys repeated for each
# whether torch's version has a kernel that supports groups, without gradients for each head
KERNEL_SUPPORTS_GROUPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, allowed: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Softmax attention of ``q [B, H, N, D]`` over ``k, v [B, H, M, D]``. allowed: bool, ``[1 or B, 1, 1 or N, M]``."""
    compute_dtypes = [fused_dtype(q, operation, q.shape[2], k.shape[2]) for operation in ("forward", "backward")]
    if compute_dtypes == [q.dtype, q.dtype] or (dropout and compute_dtypes[1] == q.dtype):
        return _call_torch(q, k, v, allowed, causal, scale, dropout)
    if not dropout and wants_gradient(q, k, v):
        return attend_differentiable(q, k, v, allowed, causal, scale)
    rows, keys, values = (x.to(compute_dtypes[1] if dropout else compute_dtypes[0]) for x in (q, k, v))
    return call_torch(rows, keys, values, allowed, causal=causal, scale=scale, dropout=dropout).to(q.dtype)


def call_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    *,
    causal: bool,
    scale: float,
    dropout: float,
    groups: bool = False,
    kernel: str | None = None,
) -> Tensor:
    """scaled_dot_product_attention, with zeros in rows without keys also on GPUs, where cuDNN's kernel gives them other
    values, and NaN as gradients: there they attend to all keys, and are left out. groups: k has fewer heads than q.
    kernel: that torch must use; causal queries of flash attention are then aligned with the last of more keys."""
    has_keys = None
    if allowed is not None and q.device.type == "cuda":
        has_keys = allowed.any(-1, keepdim=True)
        allowed = allowed | ~has_keys
    options: dict[str, Any] = {"attn_mask": allowed, "dropout_p": dropout, "is_causal": causal, "scale": scale}
    if kernel in IMPLEMENTATIONS and causal and q.shape[2] < k.shape[2]:
        return sdpa_kernels.attend_last_queries(q, k, v, scale=scale, dropout=dropout)
    if groups:
        options["enable_gqa"] = True
    with nullcontext() if kernel is None else use_kernel(kernel):
        out = F.scaled_dot_product_attention(q, k, v, **options)
    return out if has_keys is None else out.masked_fill(~has_keys, 0)


def _call_torch(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """torch's own call, with heads as rows of the batch if gradients are large: it lays them out position by position,
    all heads together, and tensors with heads first then need copies."""
    call = partial(call_torch, causal=causal, scale=scale, dropout=dropout)
    foldable = q.shape[:2] == k.shape[:2] and (allowed is None or len(allowed) == 1)
    if not (foldable and wants_gradient(q, k, v) and k.numel() + q.numel() >= MIN_FLATTENED_ELEMENTS):
        return call(q, k, v, allowed)
    rows, keys, values = (x.flatten(0, 1)[:, None] for x in (q, k, v))
    return call(rows, keys, values, allowed).unflatten(0, q.shape[:2]).squeeze(2)


def attend_differentiable(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """`attend`, without dropout, with our own backward pass; k and v may have one head for all of q's."""
    mask = None if allowed is None else additive_mask(allowed, fused_dtype(q, "forward", q.shape[2], k.shape[2]))
    inputs = FusedInputs(contiguous_rows(q), contiguous_rows(k), contiguous_rows(v), mask)
    return FUSED(inputs, FusedOptions(causal, scale))


def supports_groups(q: Tensor, k: Tensor) -> bool:
    """Whether torch's kernel supports the groups directly. Half precision is accumulated in float32 here; on GPUs only
    its kernels have groups, as flash attention."""
    if q.device.type == "cuda":
        return q.dtype in HALF_DTYPES
    if torch.compiler.is_compiling() or in_functorch_transform():
        return False
    supported = KERNEL_SUPPORTS_GROUPS and q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)
    return supported and k.shape[0] * k.shape[1] >= torch.get_num_threads()


def additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where allowed, minus infinity elsewhere."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, float("-inf"))


def contiguous_rows(x: Tensor) -> Tensor:
    """x with contiguous rows, which the kernel assumes."""
    return x if x.stride(-1) == 1 else x.contiguous()


def attend_with_lse(inputs: FusedInputs, options: FusedOptions) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exps, without a gradient; k and v have q's heads, or one for all of them."""
    q, k, v, mask = inputs
    compute_dtype = fused_dtype(q, "forward", q.shape[2], k.shape[2])
    rows, keys, values = (x.to(compute_dtype) for x in (q, k, v))
    if not _kernel_finds_keys(q, k):
        keys, values = (x.expand(-1, q.shape[1], -1, -1) for x in (keys, values))
    out, lse = merge.attend(FusedInputs(rows, keys, values, _cast_mask(mask, compute_dtype)), options)
    return out.to(q.dtype), lse


def gradients_with_lse(grad: Tensor, saved: SavedSoftmax[FusedInputs], options: FusedOptions) -> tuple[Tensor, ...]:
    """The gradients of q, k and v, for all keys or a part of them: out and lse are those of the whole."""
    (q, k, v, mask), out, lse = saved
    compute_dtype = fused_dtype(q, "backward", q.shape[2], k.shape[2])
    grad, keys, values = contiguous_rows(grad), k.to(compute_dtype), v.to(compute_dtype)
    mask = _cast_mask(mask, compute_dtype)
    if _kernel_finds_keys(q, k):
        grad, rows, out = (x.to(compute_dtype) for x in (grad, q, out))
        part = SavedSoftmax(FusedInputs(rows, keys, values, mask), out, lse)
        grad_q, grad_k, grad_v = merge.attend_backward(grad, part, options)
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)
    heads = q.shape[1]
    step = max(1, min(-(-torch.get_num_threads() // len(q)), heads // GROUP_PARTS))  # the kernel runs a head a thread
    grad_q = torch.empty_like(q)
    grad_sums = [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (k, v)]
    for head_slice in cut_range(heads, step):
        part_grad, rows, part_out = (x[:, head_slice].to(compute_dtype) for x in (grad, q, out))
        key, value = (x.expand(-1, rows.shape[1], -1, -1) for x in (keys, values))
        part = SavedSoftmax(FusedInputs(rows, key, value, mask), part_out, lse[:, head_slice])
        grad_q[:, head_slice], *part_grads = merge.attend_backward(part_grad, part, options)
        for total, part_grad_sum in zip(grad_sums, part_grads, strict=True):
            total += part_grad_sum.sum(1, keepdim=True, dtype=total.dtype)
    return grad_q, grad_sums[0].to(k.dtype), grad_sums[1].to(v.dtype)


def _kernel_finds_keys(q: Tensor, k: Tensor) -> bool:
    """Whether the kernel assigns heads to keys itself; else k has one head."""
    return k.shape[1] == q.shape[1] or k.shape[1] > 1 or supports_groups(q, k)


def _cast_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if mask is None else mask.to(dtype)


NAME = "torch's fused kernel"
FUSED = SoftmaxKernel(NAME, FusedInputs, FusedOptions, attend_with_lse, gradients_with_lse, op="fused")
