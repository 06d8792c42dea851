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
from ..layers.multi_head import MultiHeadAttention
from ..layers.named import baseline_options, check_layer, find_baseline
from ..registry import class_of, create, effective_options, entry_of
from ..results.rows import Row
from ..results.sanitize import clean
from ..spec import Spec, parse
from .config import Cell
from .sources import PACKAGE, digest, fingerprint, trace
from .task import Task
from .task_registry import find_task

PROTOCOL = 4  # raise it when measuring changes so that old and new numbers should not stand side by side


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mechanism in a cell. options: all of them, as JSON. fingerprint: of the sources that it runs. budget: what
    its options were fitted to, if anything."""

    cell: Cell
    variant: str
    kv_heads: int
    fingerprint: str
    options: str = "{}"
    backend: str | None = None
    family: str | None = None
    budget: str | None = None

    @property
    def dims(self) -> Dims:
        place = self.cell.place
        value_dim = place.head_dim if place.mode else None  # captured values have widths of their own
        sizes = {"head_dim": place.head_dim, "value_dim": value_dim, "max_len": place.max_len}
        return Dims(heads=place.heads, kv_heads=self.kv_heads, **sizes)

    @property
    def shape(self) -> Shape:
        """The shape of a forward call; when decoding, the context's; packed, that of all rows one after another."""
        p = self.cell.place
        if p.fill == "packed":
            n = sum(self.row_lengths)
            return Shape(1, p.heads, self.kv_heads, n, n, p.head_dim, p.head_dim)
        return Shape(p.batch, p.heads, self.kv_heads, p.seq_len, p.seq_len, p.head_dim, p.head_dim)

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """Of each row of the batch, the positions that are no padding."""
        return self.cell.place.row_lengths(self.cell.effort.seed)

    @property
    def keys(self) -> Any:
        """What the task wants to know of its cell: a value of the task's own model."""
        return find_task(self.cell.target).keys(**dict(self.cell.keys))

    @property
    def is_baseline(self) -> bool:
        """Whether the others of its cell are compared with it."""
        return self.variant == self.cell.baseline and self.cell.baseline_kv_heads in (None, self.kv_heads)

    @property
    def key(self) -> str:
        """A name that people can read, and a digest of everything that the result depends on."""
        c, p = self.cell, self.cell.place
        what = f"{c.part}/{p.mode or c.task}{'' if p.layer is None else f'-layer{p.layer}'}"
        what += "" if p.segment is None else f"-{p.inputs.partition(':')[0]}-segment{p.segment}"
        what += "-layers" if c.of_blocks else ""
        judged_at_once = p.mode is None and p.layer is None and p.segment is None
        what += f"-{p.inputs}" if judged_at_once and p.inputs != "normal" else ""
        sizes = f"n{p.seq_len}-b{p.batch}-h{p.heads}-kv{self.kv_heads}-d{p.head_dim}"
        how = f"{p.dtype}-{p.device}-t{p.threads or 'default'}-{'causal' if p.causal else 'all'}"
        unusual = {"cold": p.cache == "cold", "compiled": p.compiled, "graph": p.cuda_graph, p.fill: p.fill != "full"}
        how += "".join(f"-{name}" for name, so in unusual.items() if so)
        return clean(f"{c.suite}/{what}/{self.variant}/{sizes}/{how}#{self.digest}")  # as rows have it

    @property
    def digest(self) -> str:
        """Of everything that the result depends on, however the variant was written."""
        cell = asdict(self.cell)
        del cell["target"]  # where the task is found is no part of what it does
        for name, usual in (("fill", "full"), ("segment", None)):
            if getattr(self.cell.place, name) == usual:
                del cell["place"][name]  # cases were called so before there was anything else
        if not self.cell.of_blocks:
            del cell["of_blocks"]
        cell["keys"] = self.keys.model_dump(mode="json", include=dict(self.cell.keys).keys())
        content = asdict(self) | {"cell": cell, "protocol": PROTOCOL}
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
            seed=self.cell.effort.seed,
            backend=backend or self.backend,
        )
        return attn.to(device=self.cell.place.device, dtype=getattr(torch, self.cell.place.dtype))

    def row(self) -> Row:
        """The row with everything known before measuring."""
        cell, mine = self.cell, {f.name for f in fields(Row)}
        return Row(
            **{name: value for name, value in asdict(cell.place).items() if name in mine},
            suite=cell.suite,
            part=cell.part,
            task=cell.task,
            baseline=cell.baseline,
            seed=cell.effort.seed,
            case_key=self.key,
            variant=self.variant,
            backend=self.backend,
            family=self.family,
            options=self.options,
            budget=self.budget,
            kv_heads=self.kv_heads,
            kv_len=cell.place.seq_len,
        )


def make_case(cell: Cell, variant: str, kv_heads: int | None, budget: str | None = None) -> Case:
    """The case of a variant in a cell. kv_heads: the cell's, if it says; else the mechanism's own, else heads.
    budget: what the variant was fitted to.

    Raises `UsageError` for a mechanism or option that does not exist or does not agree with the cell.
    """
    task = find_task(cell.target)
    if not task.mechanisms:
        return Case(cell=cell, variant=variant, kv_heads=kv_heads or cell.place.heads, fingerprint=of_task(task))
    if cell.of_blocks:
        check_layer(variant)
    if cell.of_blocks and (cls := find_baseline(variant)):
        options = json.dumps(baseline_options(variant), sort_keys=True)
        return Case(
            cell=cell,
            variant=variant,
            kv_heads=cell.place.heads,
            options=options,
            family="baseline",
            fingerprint=digest(trace([Path(inspect.getsourcefile(cls) or PACKAGE)])) + of_task(task),
        )
    spec, attn = parse(variant), make_mechanism(cell, variant, kv_heads)
    options = effective_options(attn) if isinstance(spec, Spec) else str(spec)
    around = digest(trace([Path(inspect.getsourcefile(MultiHeadAttention) or PACKAGE)])) if cell.of_blocks else ""
    return Case(
        cell=cell,
        variant=variant,
        kv_heads=attn.kv_heads or kv_heads or cell.place.heads,
        options=json.dumps(options, sort_keys=True, default=str),
        backend=spec.backend,
        family=entry_of(spec.names[0]).family,
        fingerprint=fingerprint(*dict.fromkeys(map(class_of, spec.names))) + around + of_task(task),
        budget=budget,
    )


def takes(cell: Cell, variant: str, kv_heads: int | None) -> bool:
    """Whether a variant runs with the cell's key-value heads, or insists on another number."""
    if not find_task(cell.target).mechanisms:
        return True
    if cell.of_blocks:
        check_layer(variant)
        if find_baseline(variant):
            return True
    return kv_heads is None or make_mechanism(cell, variant, None).kv_heads in (None, kv_heads)


def make_mechanism(cell: Cell, variant: str, kv_heads: int | None) -> Attention:
    """A mechanism to ask about itself, on any backend."""
    place = cell.place
    dims = Dims(heads=place.heads, head_dim=place.head_dim, max_len=place.max_len, kv_heads=kv_heads)
    return create(str(parse(variant).without_backend()), dims=dims, seed=cell.effort.seed)


def of_task(task: Task) -> str:
    """A digest of what a plug-in's task is made of; empty for our own, of which `PROTOCOL` speaks."""
    file = Path(inspect.getsourcefile(task.source) or PACKAGE)
    return "" if file.is_relative_to(PACKAGE) else digest(trace([file]))


def group_by_cell(cases: Iterable[Case]) -> list[tuple[Cell, list[Case]]]:
    """Cases grouped by the cell in which they are compared, in the plan's order."""
    groups: dict[Cell, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.cell, []).append(case)
    return list(groups.items())


def as_json(case: Case) -> dict[str, Any]:
    """A planned case for programs to read."""
    flat = asdict(case)
    cell = flat.pop("cell")
    return {"case_key": case.key, **cell.pop("place"), **cell.pop("effort"), **cell, "keys": dict(cell["keys"]), **flat}
