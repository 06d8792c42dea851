"""Mask tensors of four dimensions, which some models make themselves, and users give: recognized as causality, padding
and windows, or else used as a bias of the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..errors import UnsupportedError
from .model_masks import ModelMask, is_visible

DIMENSIONS = 4  # batch, heads, queries, keys


def describe_tensor_mask(tensor: Tensor, batch: int, layer: str) -> ModelMask:
    """The mask of a tensor ``[1 or B, 1 or H, N, M]``: True where a query sees a key, or numbers that are added to the
    scores. batch: B. layer: named in errors. In a compiled model it is always a bias. Raises `UnsupportedError` for
    other shapes."""
    if tensor.ndim != DIMENSIONS:
        problem = f"{layer} was given a mask tensor {list(tensor.shape)}"
        raise UnsupportedError(f"{problem}; give the model a padding mask, [B, positions], or one of four dimensions")
    if torch.compiler.is_compiling():  # a graph cannot depend on contents
        numbers = torch.where(tensor, 0.0, float("-inf")) if tensor.dtype == torch.bool else tensor
        return ModelMask(Mask(), keys=tensor.shape[3], bias=numbers)
    if tensor.dtype == torch.bool:
        visible, is_mask = tensor, True
    else:
        visible = tensor > torch.finfo(tensor.dtype).min / 2
        is_mask = not tensor.requires_grad and bool(((tensor == 0) | ~visible).all())
    if is_mask and (mask := _recognize(visible, batch)) is not None:
        return mask
    numbers = torch.zeros_like(tensor, dtype=torch.float32) if tensor.dtype == torch.bool else tensor
    bias = numbers if bool(visible.all()) else numbers.masked_fill(~visible, float("-inf"))
    return ModelMask(Mask(), keys=tensor.shape[3], bias=bias)


def _recognize(visible: Tensor, batch: int) -> ModelMask | None:
    """The mask of a tensor that equals causality, padding and a window, in rows that see anything; None for others."""
    n, m = visible.shape[2:]
    by_row = visible[:, 0]
    if visible.shape[1] > 1 and not torch.equal(visible, by_row[:, None].expand_as(visible)):
        return None
    sees_any, valid = by_row.any(2), by_row.any(1)
    i, j = (torch.arange(size, device=visible.device) for size in (n, m))
    i = (i + m - n)[:, None]
    distances = (i - j).expand_as(by_row)[by_row]
    if not len(distances):
        return None
    back, ahead = int(distances.max()), -int(distances.min())
    causal = ahead <= 0
    for window in (None, back + 1 if causal else 2 * max(back, ahead)):
        expected = is_visible(i, j, causal, window) & valid[:, None]
        if torch.equal(expected[sees_any], by_row[sees_any]):
            key_mask = None if valid.all() else valid.expand(batch, -1).contiguous()
            return ModelMask(Mask(causal=causal, key_mask=key_mask), window, keys=m)
    return None
