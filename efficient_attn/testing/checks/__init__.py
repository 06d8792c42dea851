"""Every property that mechanisms are held to, cheap and telling ones first."""

from . import causality, decoding, laws, manners, padding, truth

CHECKS = (
    *manners.CHECKS,
    *truth.CHECKS,
    *causality.CHECKS,
    *padding.CHECKS,
    *laws.CHECKS,
    *decoding.CHECKS,
)
