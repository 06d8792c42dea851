"""From a group and a variant to a case."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

from ...contract.mechanism import Attention
from ...contract.shapes import Dims
from ...layers.multi_head import MultiHeadAttention
from ...layers.named import baseline_options, check_layer, find_baseline
from ...registry import class_of, create, effective_options, entry_of
from ...spec import Spec, Union
from ..case import Case
from ..case_config import Group
from ..sources import PACKAGE, digest, fingerprint, trace
from ..task import Task
from ..task_registry import find_task


def make_case(group: Group, variant: Spec | Union, kv_heads: int | None, budget: str | None = None) -> Case:
    """The case of a variant in a group. kv_heads: the group's, or else the mechanism's own, or else heads. budget: what
    the variant was fitted to.

    Raises `UsageError` for a mechanism or option that does not exist or conflicts with the group.
    """
    task = find_task(group.target)
    if not task.mechanisms:
        return Case(
            keys_model=task.keys,
            group=group,
            variant=variant,
            kv_heads=kv_heads or group.config.heads,
            fingerprint=fingerprint_task(task),
        )
    if group.of_blocks:
        check_layer(variant)
    if group.of_blocks and (cls := find_baseline(variant)):
        options = json.dumps(baseline_options(variant), sort_keys=True)
        return Case(
            keys_model=task.keys,
            group=group,
            variant=variant,
            kv_heads=group.config.heads,
            options=options,
            family="baseline",
            fingerprint=digest(trace([Path(inspect.getsourcefile(cls) or PACKAGE)])) + fingerprint_task(task),
        )
    attn = make_mechanism(group, variant, kv_heads)
    options = effective_options(attn) if isinstance(variant, Spec) else str(variant)
    around = digest(trace([Path(inspect.getsourcefile(MultiHeadAttention) or PACKAGE)])) if group.of_blocks else ""
    return Case(
        keys_model=task.keys,
        group=group,
        variant=variant,
        kv_heads=attn.kv_heads or kv_heads or group.config.heads,
        options=json.dumps(options, sort_keys=True, default=str),
        backend=variant.backend,
        family=entry_of(variant.names[0]).family,
        fingerprint=fingerprint(*dict.fromkeys(map(class_of, variant.names))) + around + fingerprint_task(task),
        budget=budget,
    )


def accepts_kv_heads(group: Group, variant: Spec | Union, kv_heads: int | None) -> bool:
    """Whether a variant supports the group's key-value heads."""
    if not find_task(group.target).mechanisms:
        return True
    if group.of_blocks:
        check_layer(variant)
        if find_baseline(variant):
            return True
    return kv_heads is None or make_mechanism(group, variant, None).kv_heads in (None, kv_heads)


def make_mechanism(group: Group, variant: Spec | Union, kv_heads: int | None) -> Attention:
    """An instance to query, on any backend."""
    config = group.config
    dims = Dims(heads=config.heads, head_dim=config.head_dim, max_len=config.max_len, kv_heads=kv_heads)
    return create(variant.without_backend(), dims=dims, seed=group.sampling.seed)


def fingerprint_task(task: Task) -> str:
    """A digest of the sources of a plug-in's task; empty for built-in tasks, which `PROTOCOL` versions."""
    file = Path(inspect.getsourcefile(task.source) or PACKAGE)
    return "" if file.is_relative_to(PACKAGE) else digest(trace([file]))
