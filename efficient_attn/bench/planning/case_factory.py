"""Make the case of a variant in a group, with its options and the digest of its sources.

Equal budgets: the options with which each mechanism of a group meets a budget follow from its own rule.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ...contract.budget import Budget, is_byte_budget
from ...contract.decode_state import state_bytes
from ...contract.mechanism import Attention
from ...contract.shapes import Dims
from ...errors import UnsupportedError, UsageError
from ...layers.multi_head import MultiHeadAttention
from ...layers.named import baseline_options, check_layer, find_baseline
from ...registry import class_of, create, entry_of
from ...registry.factory import convert_option
from ...spec import Spec, Union
from ...units import parse_size, size
from ..case import Case
from ..case_config import Group
from ..sources import PACKAGE, digest, fingerprint, trace
from ..task import Task
from ..task_registry import find_task

BUDGET_TOLERANCE = 1.05  # of a budget of bytes, because states have a few numbers besides features


def make_case(group: Group, variant: Spec | Union, kv_heads: int | None, budget: str | None = None) -> Case:
    """The case of a variant in a group. kv_heads: the group's, by default the mechanism's own. budget: to which the
    variant was fitted.

    Raises `UsageError` for a mechanism or option that does not exist or conflicts with the group.
    """
    task = find_task(group.target)
    make, task_digest = partial(Case, keys_model=task.keys, group=group, variant=variant), fingerprint_task(task)
    if not task.mechanisms:
        return make(kv_heads=kv_heads or group.config.heads, fingerprint=task_digest)
    layer_digest = ""
    if group.of_blocks:
        check_layer(variant)
        if cls := find_baseline(variant):
            options = json.dumps(baseline_options(variant), sort_keys=True)
            source_digest = _digest_class(cls) + task_digest
            return make(kv_heads=group.config.heads, options=options, family="baseline", fingerprint=source_digest)
        layer_digest = _digest_class(MultiHeadAttention)
    attn = _make_mechanism(group, variant, kv_heads)
    options = attn.origin.options if isinstance(variant, Spec) else str(variant)
    classes = dict.fromkeys(class_of(part.name, part.backend) for part in variant.parts)
    return make(
        kv_heads=attn.kv_heads or kv_heads or group.config.heads,
        options=json.dumps(options, sort_keys=True, default=str),
        backend=variant.backend,
        family=entry_of(variant.names[0]).family,
        fingerprint=fingerprint(*classes) + layer_digest + task_digest,
        budget=budget,
    )


def _digest_class(cls: type) -> str:
    return digest(trace([Path(inspect.getsourcefile(cls) or PACKAGE)]))


def accepts_kv_heads(group: Group, variant: Spec | Union, kv_heads: int | None) -> bool:
    """Whether a variant supports the group's key-value heads."""
    if not find_task(group.target).mechanisms:
        return True
    if group.of_blocks:
        check_layer(variant)
        if find_baseline(variant):
            return True
    return kv_heads is None or _make_mechanism(group, variant, None).kv_heads in (None, kv_heads)


def _make_mechanism(group: Group, variant: Spec | Union, kv_heads: int | None) -> Attention:
    config = group.config
    dims = Dims(heads=config.heads, head_dim=config.head_dim, max_len=config.max_len, kv_heads=kv_heads)
    return create(variant.without_backend(), dims=dims, seed=group.sampling.seed)


def fingerprint_task(task: Task) -> str:
    """A digest of the sources of a plug-in's task; empty for built-in tasks, which `PROTOCOL` versions."""
    file = Path(inspect.getsourcefile(task.source) or PACKAGE)
    return "" if file.is_relative_to(PACKAGE) else digest(trace([file]))


# -- budgets -----------------------------------------------------------------------------------------------------------


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
    config, kv_heads = group.config, kv_heads or group.config.heads
    if not isinstance(spec, Spec):
        raise UsageError(f"budget {budget}: {spec} is a union, which has no rule")
    sizes = {"length": config.seq_len, "kv_heads": kv_heads, "head_dim": config.head_dim}
    try:
        parsed_budget = Budget.parse(budget, **sizes, dtype=config.dtype, causal=config.causal)
        cls = class_of(spec.name)
        options = {name: convert_option(cls, spec.name, name, value) for name, value in spec.options.items()}
        fitted = spec.with_options(cls.fit(replace(parsed_budget, options=options)))
    except UnsupportedError as error:
        raise UsageError(f"budget {budget}: {error}; leave {spec} out, or name its options without a budget") from error
    except UsageError as error:
        raise UsageError(f"budget {budget}: {error}") from error
    if is_byte_budget(budget):
        attn = _make_mechanism(group, fitted, kv_heads)
        if not attn.traits.decode:
            raise UsageError(f"budget {budget}: {fitted} has no decode state; give a budget of keys")
        state_size = state_bytes(attn.init_state(1, config.seq_len, getattr(torch, config.dtype), "meta"))
        if state_size > BUDGET_TOLERANCE * parse_size(budget):
            stored = f"{fitted} stores {size(state_size)} after {config.seq_len} positions"
            raise UsageError(f"budget {budget}: {stored}, more than a query reads; give a budget of keys")
    return fitted
