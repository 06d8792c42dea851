"""All properties that mechanisms are verified for: the functions with the decorator `check` in these modules, in order,
cheap and informative ones first."""

from types import ModuleType

from ..check import Check
from . import (
    algebra,
    backward,
    budgets,
    call_context,
    causality,
    decode_states,
    decoding,
    dropout,
    environment,
    growth_claims,
    options,
    padding,
    parameters,
    persistence,
    precision,
    reference,
    reuse,
    row_positions,
    shared_heads,
    side_effects,
    size_design,
)

FIRST = (side_effects, reuse, reference, call_context, growth_claims, size_design, precision, causality)
LATER = (padding, row_positions, algebra, options, parameters, decoding, decode_states, shared_heads, dropout)
LATER += (persistence, budgets, backward, environment)


def list_checks(*modules: ModuleType) -> tuple[Check, ...]:
    """The checks that modules define, in order."""
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, Check))


CHECKS = list_checks(*FIRST, *LATER)
