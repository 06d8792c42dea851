"""Equal budgets: the options with which each mechanism of a group meets a budget, by its own rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ...contract.budget import Budget, is_byte_budget
from ...contract.decode_state import state_bytes
from ...errors import UnsupportedError, UsageError
from ...registry import class_of
from ...spec import Spec, Union
from ...units import parse_size, size
from ..case_config import Group
from .case_factory import make_mechanism

BUDGET_TOLERANCE = 1.05  # of a budget of bytes, because states have a few numbers besides features


def fit_all(
    group: Group, specs: Sequence[Spec | Union], kv_heads: int | None, budgets: Sequence[str | None]
) -> Iterator[tuple[Spec | Union, str | None]]:
    """The specs fitted to each of the budgets, with the budget. The group's baseline is yielded once, unchanged.

    Raises `UsageError` for mechanisms without a rule, options that the rule sets, and budgets that cannot be met.
    """
    for spec in specs:
        if spec == group.baseline or budgets == (None,):
            yield spec, None
        else:
            yield from ((_fit(group, spec, kv_heads, budget), budget) for budget in budgets if budget is not None)


def _fit(group: Group, spec: Spec | Union, kv_heads: int | None, budget: str) -> Spec:
    config = group.config
    if not isinstance(spec, Spec):
        raise UsageError(f"budget {budget}: {spec} is a union, which has no rule")
    sizes = {"length": config.seq_len, "kv_heads": kv_heads or config.heads, "head_dim": config.head_dim}
    try:
        parsed_budget = Budget.parse(budget, **sizes, dtype=config.dtype, causal=config.causal)
        fitted = spec.with_options(class_of(spec.name).fit(parsed_budget))
    except UnsupportedError as error:
        raise UsageError(f"budget {budget}: {error}; leave {spec} out, or name its options without a budget") from error
    except UsageError as error:
        raise UsageError(f"budget {budget}: {error}") from error
    if is_byte_budget(budget):
        _check_state(group, fitted, kv_heads, budget)
    return fitted


def _check_state(group: Group, fitted: Spec, kv_heads: int | None, budget: str) -> None:
    """Refuse a mechanism whose state is larger than the budget."""
    attn = make_mechanism(group, fitted, kv_heads or group.config.heads)
    if not attn.traits.decode:
        raise UsageError(f"budget {budget}: {fitted} has no decode state; give a budget of keys")
    state_size = state_bytes(attn.init_state(1, group.config.seq_len, getattr(torch, group.config.dtype), "meta"))
    if state_size > BUDGET_TOLERANCE * parse_size(budget):
        raise UsageError(
            f"budget {budget}: {fitted} stores {size(state_size)} after {group.config.seq_len} positions, more than a "
            "query reads; give a budget of keys"
        )
