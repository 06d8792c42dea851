"""Attention as a single function call, for mechanisms without learned parameters."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..contract.shapes import Dims, Shape
from ..errors import UnsupportedError, UsageError
from .factory import create


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    variant: str = "full",
    dropout_p: float = 0.0,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
    mask: Mask | None = None,
    seed: int = 0,
    backend: str | None = None,
    **options: Any,
) -> Tensor:
    """Compute attention with a mechanism by its spec, like ``scaled_dot_product_attention``.

    q ``[B, H, N, D]``, k ``[B, Hkv, M, D]``. Causal attention is aligned bottom-right, and ``cu_seqlens`` packs
    sequences into one row (see `Mask`). Raises `UnsupportedError` for mechanisms with learned parameters, which have to
    be created and trained, and for unsupported dropout; `UsageError` for unknown names and options.
    """
    if mask is not None and (is_causal or cu_seqlens is not None):
        raise UsageError(f"attention: give either {'is_causal' if is_causal else 'cu_seqlens'} or a mask")
    shape = Shape.of(q, k, v)
    inputs = {name: options.pop(name) for name, value in list(options.items()) if isinstance(value, Tensor)}
    dims = Dims(
        heads=shape.heads or None,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        value_dim=shape.value_dim,
        max_len=max(shape.m, 1),
    )
    attn = _create(variant, dims, seed, backend, dropout_p, tuple(sorted(options.items())), q.device)
    return attn(q, k, v, mask if mask is not None else Mask(causal=is_causal, cu_seqlens=cu_seqlens), **inputs)


@lru_cache(maxsize=64)
def _create(
    variant: str,
    dims: Dims,
    seed: int,
    backend: str | None,
    dropout: float,
    options: tuple[tuple[str, Any], ...],
    device: torch.device,
) -> Attention:
    attn = create(variant, dims=dims, seed=seed, backend=backend, **dict(options))
    attn.dropout = dropout
    if next(attn.parameters(), None) is not None:
        raise UnsupportedError(f"{attn.label} has learned parameters: create it with ea.create and train it")
    return attn.to(device)
