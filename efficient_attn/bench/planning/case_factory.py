"""Make the case of a variant in a group, with its options and the digest of its sources."""

from __future__ import annotations

import inspect
import json
from functools import partial
from pathlib import Path

from ...contract.mechanism import Attention
from ...contract.shapes import Dims
from ...layers.multi_head import MultiHeadAttention
from ...layers.named import baseline_options, check_layer, find_baseline
from ...registry import class_of, create, entry_of
from ...spec import Spec, Union
from ..case import Case
from ..case_config import Group
from ..sources import PACKAGE, digest, fingerprint, trace
from ..task import Task
from ..task_registry import find_task


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
    attn = make_mechanism(group, variant, kv_heads)
    options = attn.origin.options if isinstance(variant, Spec) else str(variant)
    return make(
        kv_heads=attn.kv_heads or kv_heads or group.config.heads,
        options=json.dumps(options, sort_keys=True, default=str),
        backend=variant.backend,
        family=entry_of(variant.names[0]).family,
        fingerprint=fingerprint(*dict.fromkeys(map(class_of, variant.names))) + layer_digest + task_digest,
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
    return kv_heads is None or make_mechanism(group, variant, None).kv_heads in (None, kv_heads)


def make_mechanism(group: Group, variant: Spec | Union, kv_heads: int | None) -> Attention:
    """An instance for queries, on any backend."""
    config = group.config
    dims = Dims(heads=config.heads, head_dim=config.head_dim, max_len=config.max_len, kv_heads=kv_heads)
    return create(variant.without_backend(), dims=dims, seed=group.sampling.seed)


def fingerprint_task(task: Task) -> str:
    """A digest of the sources of a plug-in's task; empty for built-in tasks, which `PROTOCOL` versions."""
    file = Path(inspect.getsourcefile(task.source) or PACKAGE)
    return "" if file.is_relative_to(PACKAGE) else digest(trace([file]))
