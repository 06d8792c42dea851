"""All properties that mechanisms are verified for, cheap and informative ones first."""

from . import (
    algebra,
    call_context,
    causality,
    decoding,
    dropout,
    growth_claims,
    long_decoding,
    packed,
    padding,
    persistence,
    precision,
    reference,
    reuse,
    shared_heads,
    side_effects,
    size_design,
)

CHECKS = (
    *side_effects.CHECKS,
    *reuse.CHECKS,
    *reference.CHECKS,
    *call_context.CHECKS,
    *growth_claims.CHECKS,
    *size_design.CHECKS,
    *precision.CHECKS,
    *causality.CHECKS,
    *padding.CHECKS,
    *packed.CHECKS,
    *algebra.CHECKS,
    *decoding.CHECKS,
    *long_decoding.CHECKS,
    *shared_heads.CHECKS,
    *dropout.CHECKS,
    *persistence.CHECKS,
)
