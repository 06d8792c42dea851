"""Every property that mechanisms are held to, cheap and telling ones first."""

from . import causality, decoding, dropout, grouping, laws, manners, packed, padding, persistence, renewal, truth

CHECKS = (
    *manners.CHECKS,
    *renewal.CHECKS,
    *truth.CHECKS,
    *causality.CHECKS,
    *padding.CHECKS,
    *packed.CHECKS,
    *laws.CHECKS,
    *decoding.CHECKS,
    *grouping.CHECKS,
    *dropout.CHECKS,
    *persistence.CHECKS,
)
