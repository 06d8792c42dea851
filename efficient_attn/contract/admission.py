"""The gate at the door: what an instance does not claim, or what does not fit it, gets no further."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import UnsupportedError, UsageError
from .mask import MASK_FIELDS, Mask
from .shapes import Shape
from .traits import Traits

if TYPE_CHECKING:
    from .mechanism import Attention


def admit(attn: Attention, shape: Shape, mask: Mask, inputs: Mapping[str, Tensor], q: Tensor) -> Traits:
    """The traits of an instance that may serve a call; otherwise `UnsupportedError` or `UsageError` says why not."""
    traits, device = attn.traits, q.device
    plain = type(mask) is Mask and attn.known_mask_fields is MASK_FIELDS  # then there is nothing not to know
    if not plain and (unknown := mask.used - attn.known_mask_fields):
        raise UnsupportedError(f"{attn.label} does not know the mask field {', '.join(sorted(unknown))}")
    if attn.only_on and attn.only_on.get(attn.backend, device.type) != device.type:
        where = attn.only_on[attn.backend]
        raise UnsupportedError(f"{attn.label}: backend {attn.backend!r} runs on {where} only, not on {device.type}")
    check_dtype(attn, q.dtype)
    check_dropout(attn, traits, attn.dropping)
    aligned = mask.start(shape.n, shape.m) == 0 and shape.n == shape.m
    for wrong, what in (
        (mask.causal and not traits.causal, "a causal mask"),
        (not mask.causal and not traits.bidirectional, "a mask that is not causal"),
        (mask.pads_keys and not traits.padding, "padding"),
        (not aligned and not traits.cross, "queries that do not stand on the keys (N != M or query_start)"),
        (shape.kv_heads != shape.heads and not traits.grouped, "fewer key-value heads than heads"),
    ):
        if wrong:
            raise UnsupportedError(f"{attn.label} does not support {what}")
    if inputs.keys() != traits.inputs.keys():
        raise UsageError(f"{attn.label} takes the inputs {sorted(traits.inputs)}, got {sorted(inputs)}")
    attn.dims.check(shape, kv_heads=attn.kv_heads, who=lambda: attn.label)
    mask.check(shape.batch, shape.n, shape.m, device)
    return traits


def check_dtype(attn: Attention, dtype: torch.dtype) -> None:
    """Raise `UnsupportedError` where the backend that runs does not take a dtype."""
    if reason := attn.why_not_dtype(dtype):
        raise UnsupportedError(f"{attn.label}: {reason}")


def check_dropout(attn: Attention, traits: Traits, p: float) -> None:
    """Raise `UnsupportedError` where weights would have to be dropped and the traits do not claim it."""
    if p and not traits.dropout:
        raise UnsupportedError(
            f"{attn.label}: backend {attn.backend!r} does not drop attention weights, its traits do not claim dropout"
        )
