"""Checks of a call before it runs: unsupported features and invalid shapes raise."""

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..errors import UnsupportedError, UsageError
from .mask import MASK_FIELDS, Mask
from .shapes import Inputs, Shape, Values
from .traits import Traits

MAX_ACCEPTED_CALLS = 4  # calls that an instance remembers: forward and a decode step, at two geometries each
CheckedMechanism: TypeAlias = Any  # an `Attention`, whose module imports this one


class AcceptedCall(NamedTuple):
    """A call that passed the checks, and the facts that they depend on. is_plain: without padding, packed sequences,
    further inputs or empty tensors, so that it can run directly."""

    facts: tuple[Any, ...]
    shape: Shape
    traits: Traits
    is_plain: bool = False


def find_accepted(attn: CheckedMechanism, q: Tensor, k: Tensor, v: Values, mask: Mask, inputs: Inputs) -> AcceptedCall:
    """`check_call_features` with the call's shape; for calls that were accepted before, only tensors of masks are
    checked again, because the checks take a tenth of the time of a short call. Compiled code has guards instead, and
    other tensor classes may have symbolic sizes."""
    cacheable = type(mask) is Mask and type(q) is type(k) is Tensor and not torch.compiler.is_compiling()
    facts = _read_call_facts(attn, q, k, v, mask, inputs) if cacheable else ()
    for accepted in attn.accepted_calls if cacheable else ():
        if accepted.facts == facts:
            if not accepted.is_plain:
                mask.check(accepted.shape.batch, accepted.shape.n, accepted.shape.m, q.device)
            return accepted
    shape = attn.shape_of(q, k, v)
    traits = check_call_features(attn, shape, mask, inputs, q)
    if not cacheable:
        return AcceptedCall((), shape, traits)
    is_plain = not (mask.holds_tensors or inputs) and traits.gradient and q.numel() > 0 and shape.m > 0
    accepted_call = AcceptedCall(facts, shape, traits, is_plain)
    # one assignment, so that other threads never see an incomplete tuple
    attn.accepted_calls = accepted_call, *attn.accepted_calls[: MAX_ACCEPTED_CALLS - 1]
    return accepted_call


def _read_call_facts(
    attn: CheckedMechanism, q: Tensor, k: Tensor, v: Values, mask: Mask, inputs: Inputs
) -> tuple[Any, ...]:
    """The facts that the checks depend on, those that differ most often first."""
    value_facts = None if v is None else (type(v), v.shape, v.dtype, v.device)
    tensor_facts = q.shape, k.shape, value_facts, q.dtype, k.dtype, q.device, k.device, tuple(inputs)
    mask_facts = mask.causal, mask.query_start, mask.pads_keys, mask.holds_tensors, mask.query_positions is None
    mechanism_facts = attn.traits, attn.known_mask_fields, attn.dims, attn.kv_heads, attn.key_dim
    return *tensor_facts, *mask_facts, attn.backend, attn.dropping, *mechanism_facts


def check_call_features(attn: CheckedMechanism, shape: Shape, mask: Mask, inputs: Inputs, q: Tensor) -> Traits:
    """Check that an instance supports a call, and return its traits. Raises `UnsupportedError` or `UsageError`."""
    traits, device = attn.traits, q.device
    knows_all_fields = type(mask) is Mask and attn.known_mask_fields is MASK_FIELDS
    if not knows_all_fields and (unknown_fields := mask.used - attn.known_mask_fields):
        raise UnsupportedError(f"{attn.label} does not support the mask field {', '.join(sorted(unknown_fields))}")
    if attn.only_on and attn.only_on.get(attn.backend, device.type) != device.type:
        supported = attn.only_on[attn.backend]
        raise UnsupportedError(f"{attn.label}: backend {attn.backend!r} runs on {supported} only, not on {device.type}")
    check_dtype(attn, q.dtype)
    check_dropout(attn, traits, attn.dropping)
    if mask.query_positions is not None and attn.backend != "dense":
        raise UnsupportedError(f"{attn.label}: the mask field query_positions needs backend='dense'")
    aligned = shape.n == shape.m and mask.query_positions is None and mask.start(shape.n, shape.m) == 0
    for unsupported, message in (
        (mask.causal and not traits.causal, "a causal mask"),
        (not mask.causal and not traits.bidirectional, "a mask that is not causal"),
        (mask.pads_keys and not traits.padding, "padding"),
        (not aligned and not traits.cross, "queries that are not aligned with the keys (N != M or query_start)"),
        (shape.kv_heads != shape.heads and not traits.grouped, "fewer key-value heads than heads"),
    ):
        if unsupported:
            raise UnsupportedError(f"{attn.label} does not support {message}")
    if inputs.keys() != traits.inputs.keys():
        raise UsageError(f"{attn.label} takes the inputs {sorted(traits.inputs)}, got {sorted(inputs)}")
    attn.dims.check(shape, kv_heads=attn.kv_heads, get_label=lambda: attn.label)
    mask.check(shape.batch, shape.n, shape.m, device)
    return traits


def check_dtype(attn: CheckedMechanism, dtype: torch.dtype) -> None:
    """Raise `UnsupportedError` if the selected backend does not support a dtype."""
    if reason := attn.why_not_dtype(dtype):
        raise UnsupportedError(f"{attn.label}: {reason}")


def check_dropout(attn: CheckedMechanism, traits: Traits, p: float) -> None:
    """Raise `UnsupportedError` for dropout that the traits do not declare."""
    if p and not traits.dropout:
        raise UnsupportedError(
            f"{attn.label}: backend {attn.backend!r} does not drop attention weights, its traits do not claim dropout"
        )
