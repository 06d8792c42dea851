"""Every property that mechanisms are held to, cheap and telling ones first."""

from . import (
    causality,
    claims,
    decoding,
    dropout,
    grouping,
    laps,
    laws,
    manners,
    packed,
    padding,
    persistence,
    precision,
    renewal,
    sizes,
    truth,
    world,
)

CHECKS = (
    *manners.CHECKS,
    *renewal.CHECKS,
    *truth.CHECKS,
    *world.CHECKS,
    *claims.CHECKS,
    *sizes.CHECKS,
    *precision.CHECKS,
    *causality.CHECKS,
    *padding.CHECKS,
    *packed.CHECKS,
    *laws.CHECKS,
    *decoding.CHECKS,
    *laps.CHECKS,
    *grouping.CHECKS,
    *dropout.CHECKS,
    *persistence.CHECKS,
)
