"""The case: one mechanism in one cell of a plan, all that it takes to run it again, and the key that names it."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..contract.mechanism import Attention
from ..contract.shapes import Dims, Shape
from ..errors import renamed
from ..layers.multi_head import MultiHeadAttention
from ..layers.named import baseline_options, check_layer, find_baseline
from ..registry import class_of, create, effective_options, entry_of
from ..results.rows import Row
from ..results.sanitize import clean
from ..spec import Spec, parse
from .config import Group
from .sources import PACKAGE, digest, fingerprint, trace
from .task import Task
from .task_registry import find_task

PROTOCOL = 4  # raise it when measuring changes so that old and new numbers should not stand side by side


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mechanism in a cell. options: all of them, as JSON. fingerprint: of the sources that it runs. budget: what
    its options were fitted to, if anything."""

    group: Group
    variant: str
    kv_heads: int
    fingerprint: str
    options: str = "{}"
    backend: str | None = None
    family: str | None = None
    budget: str | None = None

    cell = renamed("cell", "group")

    @property
    def dims(self) -> Dims:
        config = self.group.config
        value_dim = config.head_dim if config.mode else None  # captured values have widths of their own
        sizes = {"head_dim": config.head_dim, "value_dim": value_dim, "max_len": config.max_len}
        return Dims(heads=config.heads, kv_heads=self.kv_heads, **sizes)

    @property
    def shape(self) -> Shape:
        """The shape of a forward call; when decoding, the context's; packed, that of all rows one after another."""
        p = self.group.config
        if p.fill == "packed":
            n = sum(self.row_lengths)
            return Shape(1, p.heads, self.kv_heads, n, n, p.head_dim, p.head_dim)
        return Shape(p.batch, p.heads, self.kv_heads, p.seq_len, p.seq_len, p.head_dim, p.head_dim)

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """Of each row of the batch, the positions that are no padding."""
        return self.group.config.row_lengths(self.group.sampling.seed)

    @property
    def keys(self) -> Any:
        """What the task wants to know of its cell: a value of the task's own model."""
        return find_task(self.group.target).keys(**dict(self.group.keys))

    @property
    def is_baseline(self) -> bool:
        """Whether the others of its cell are compared with it."""
        return self.variant == self.group.baseline and self.group.baseline_kv_heads in (None, self.kv_heads)

    @property
    def key(self) -> str:
        """A name that people can read, and a digest of everything that the result depends on."""
        c, p = self.group, self.group.config
        task_text = f"{c.part}/{p.mode or c.task}{'' if p.layer is None else f'-layer{p.layer}'}"
        task_text += "" if p.segment is None else f"-{p.inputs.partition(':')[0]}-segment{p.segment}"
        task_text += "-layers" if c.of_blocks else ""
        judged_at_once = p.mode is None and p.layer is None and p.segment is None
        task_text += f"-{p.inputs}" if judged_at_once and p.inputs != "normal" else ""
        sizes = f"n{p.seq_len}-b{p.batch}-h{p.heads}-kv{self.kv_heads}-d{p.head_dim}"
        how = f"{p.dtype}-{p.device}-t{p.threads or 'default'}-{'causal' if p.causal else 'all'}"
        unusual = {"cold": p.cache == "cold", "compiled": p.compiled, "graph": p.cuda_graph, p.fill: p.fill != "full"}
        how += "".join(f"-{name}" for name, so in unusual.items() if so)
        return clean(f"{c.suite}/{task_text}/{self.variant}/{sizes}/{how}#{self.digest}")  # as rows have it

    @property
    def digest(self) -> str:
        """Of everything that the result depends on, however the variant was written."""
        group = asdict(self.group)
        del group["target"]  # the module that defines the task is no part of the measurement
        for name, default in (("fill", "full"), ("segment", None)):
            if getattr(self.group.config, name) == default:
                del group["config"][name]  # these fields are newer than the digests of published cases
        if not self.group.of_blocks:
            del group["of_blocks"]
        group["keys"] = self.keys.model_dump(mode="json", include=dict(self.group.keys).keys())
        content = asdict(self) | {"group": group, "protocol": PROTOCOL}
        if self.budget is None:
            del content["budget"]
        # parts of a union in another order, or a default written out, are the same case
        content["variant"] = "|".join(sorted(parse(self.variant).names))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def create(self, *, backend: str | None = None) -> Attention:
        """The mechanism of this case, on its device and in its dtype; with ``backend`` its oracle, say."""
        import torch

        attn = create(
            str(parse(self.variant).without_backend()),
            dims=self.dims,
            seed=self.group.sampling.seed,
            backend=backend or self.backend,
        )
        return attn.to(device=self.group.config.device, dtype=getattr(torch, self.group.config.dtype))

    def row(self) -> Row:
        """The row with everything known before measuring."""
        group, row_columns = self.group, {f.name for f in fields(Row)}
        return Row(
            **{name: value for name, value in asdict(group.config).items() if name in row_columns},
            suite=group.suite,
            part=group.part,
            task=group.task,
            baseline=group.baseline,
            seed=group.sampling.seed,
            case_key=self.key,
            variant=self.variant,
            backend=self.backend,
            family=self.family,
            options=self.options,
            budget=self.budget,
            kv_heads=self.kv_heads,
            kv_len=group.config.seq_len,
        )


def make_case(group: Group, variant: str, kv_heads: int | None, budget: str | None = None) -> Case:
    """The case of a variant in a cell. kv_heads: the cell's, if it says; else the mechanism's own, else heads.
    budget: what the variant was fitted to.

    Raises `UsageError` for a mechanism or option that does not exist or does not agree with the cell.
    """
    task = find_task(group.target)
    if not task.mechanisms:
        return Case(
            group=group, variant=variant, kv_heads=kv_heads or group.config.heads, fingerprint=fingerprint_task(task)
        )
    if group.of_blocks:
        check_layer(variant)
    if group.of_blocks and (cls := find_baseline(variant)):
        options = json.dumps(baseline_options(variant), sort_keys=True)
        return Case(
            group=group,
            variant=variant,
            kv_heads=group.config.heads,
            options=options,
            family="baseline",
            fingerprint=digest(trace([Path(inspect.getsourcefile(cls) or PACKAGE)])) + fingerprint_task(task),
        )
    spec, attn = parse(variant), make_mechanism(group, variant, kv_heads)
    options = effective_options(attn) if isinstance(spec, Spec) else str(spec)
    around = digest(trace([Path(inspect.getsourcefile(MultiHeadAttention) or PACKAGE)])) if group.of_blocks else ""
    return Case(
        group=group,
        variant=variant,
        kv_heads=attn.kv_heads or kv_heads or group.config.heads,
        options=json.dumps(options, sort_keys=True, default=str),
        backend=spec.backend,
        family=entry_of(spec.names[0]).family,
        fingerprint=fingerprint(*dict.fromkeys(map(class_of, spec.names))) + around + fingerprint_task(task),
        budget=budget,
    )


def accepts_kv_heads(group: Group, variant: str, kv_heads: int | None) -> bool:
    """Whether a variant runs with the cell's key-value heads, or insists on another number."""
    if not find_task(group.target).mechanisms:
        return True
    if group.of_blocks:
        check_layer(variant)
        if find_baseline(variant):
            return True
    return kv_heads is None or make_mechanism(group, variant, None).kv_heads in (None, kv_heads)


def make_mechanism(group: Group, variant: str, kv_heads: int | None) -> Attention:
    """A mechanism to ask about itself, on any backend."""
    config = group.config
    dims = Dims(heads=config.heads, head_dim=config.head_dim, max_len=config.max_len, kv_heads=kv_heads)
    return create(str(parse(variant).without_backend()), dims=dims, seed=group.sampling.seed)


def fingerprint_task(task: Task) -> str:
    """A digest of what a plug-in's task is made of; empty for our own, of which `PROTOCOL` speaks."""
    file = Path(inspect.getsourcefile(task.source) or PACKAGE)
    return "" if file.is_relative_to(PACKAGE) else digest(trace([file]))


def group_cases(cases: Iterable[Case]) -> list[tuple[Group, list[Case]]]:
    """Cases grouped by the cell in which they are compared, in the plan's order."""
    groups: dict[Group, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    return list(groups.items())


def as_json(case: Case) -> dict[str, Any]:
    """A planned case for programs to read."""
    fields = asdict(case)
    group = fields.pop("group")
    config, sampling = group.pop("config"), group.pop("sampling")
    return {"case_key": case.key, **config, **sampling, **group, "keys": dict(group["keys"]), **fields}
