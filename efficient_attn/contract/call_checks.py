"""The gate at the door: what an instance does not claim, or what does not fit it, gets no further."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UnsupportedError, UsageError
from .mask import MASK_FIELDS, Mask
from .shapes import Shape, Values
from .traits import Traits

if TYPE_CHECKING:
    from .mechanism import Attention


KEPT = 4  # calls that an instance remembers: forward and a decode step, at two geometries each


class AcceptedCall(NamedTuple):
    """A call that may be served, and all that this was judged by. bare: it has neither padding, nor packed sequences,
    nor inputs of its own, nor anything empty, so that there is nothing to do but to run it."""

    facts: tuple[Any, ...]
    shape: Shape
    traits: Traits
    is_plain: bool = False


def find_accepted(
    attn: Attention, q: Tensor, k: Tensor, v: Values, mask: Mask, inputs: Mapping[str, Tensor]
) -> AcceptedCall:
    """`admit` with the sizes of the call; what was admitted lately is not judged again, only masks' tensors are.

    The judgement takes as long as a tenth of a short call. Compiled code has it in its guards instead, and tensors that
    are not torch's own class may hold sizes that are not numbers.
    """
    plain = type(mask) is Mask and type(q) is type(k) is Tensor and not torch.compiler.is_compiling()
    if not plain:
        shape = attn.shape_of(q, k, v)
        return AcceptedCall((), shape, check_call_features(attn, shape, mask, inputs, q))
    facts = _read_call_facts(attn, q, k, v, mask, inputs)
    for accepted in attn.admitted:
        if accepted.facts == facts:
            if accepted.is_plain:
                return accepted
            mask.check(accepted.shape.batch, accepted.shape.n, accepted.shape.m, q.device)
            return accepted
    shape = attn.shape_of(q, k, v)
    traits = check_call_features(attn, shape, mask, inputs, q)
    bare = not (mask.holds_tensors or inputs) and traits.gradient and q.numel() > 0 and shape.m > 0
    accepted_call = AcceptedCall(facts, shape, traits, bare)
    attn.admitted = (accepted_call, *attn.admitted[: KEPT - 1])  # in one assignment, for the sake of threads
    return accepted_call


def _read_call_facts(
    attn: Attention, q: Tensor, k: Tensor, v: Values, mask: Mask, inputs: Mapping[str, Tensor]
) -> tuple[Any, ...]:
    """What `admit` and `shape_of` judge by, what differs most often first."""
    of_values = None if v is None else (type(v), v.shape, v.dtype, v.device)
    of_tensors = q.shape, k.shape, of_values, q.dtype, k.dtype, q.device, k.device, tuple(inputs)
    of_mask = mask.causal, mask.query_start, mask.pads_keys, mask.holds_tensors
    declared = attn.traits, attn.known_mask_fields, attn.dims, attn.kv_heads, attn.key_dim
    return *of_tensors, *of_mask, attn.backend, attn.dropping, *declared


def check_call_features(attn: Attention, shape: Shape, mask: Mask, inputs: Mapping[str, Tensor], q: Tensor) -> Traits:
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
    for wrong, message in (
        (mask.causal and not traits.causal, "a causal mask"),
        (not mask.causal and not traits.bidirectional, "a mask that is not causal"),
        (mask.pads_keys and not traits.padding, "padding"),
        (not aligned and not traits.cross, "queries that do not stand on the keys (N != M or query_start)"),
        (shape.kv_heads != shape.heads and not traits.grouped, "fewer key-value heads than heads"),
    ):
        if wrong:
            raise UnsupportedError(f"{attn.label} does not support {message}")
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
