"""The case: one mechanism in one cell of a plan, all that it takes to run it again, and the key that names it."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ..contract.mechanism import Attention
from ..contract.shapes import Dims, Shape
from ..registry import create, effective_options, entry_of
from ..results.rows import Row
from ..spec import parse_union
from .place import Cell
from .tables import find_task
from .task import Task

PROTOCOL = 3  # raise it when measuring changes so that old and new numbers should not stand side by side
MATERIAL = (
    "kernels/**/*.py",
    "kernels/**/*.cpp",
    "kernels/**/*.h",
    "feature_maps.py",
    "variants/linear/random_features.py",
    "contract/*.py",
    "patterns/*.py",
)  # what any mechanism may run


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mechanism in a cell. options: all of them, as JSON. fingerprint: of the sources that it runs."""

    cell: Cell
    variant: str
    kv_heads: int
    fingerprint: str
    options: str = "{}"
    backend: str | None = None
    family: str | None = None

    @property
    def dims(self) -> Dims:
        place = self.cell.place
        value_dim = place.head_dim if place.mode else None  # captured values have widths of their own
        sizes = {"head_dim": place.head_dim, "value_dim": value_dim, "max_len": place.max_len}
        return Dims(heads=place.heads, kv_heads=self.kv_heads, **sizes)

    @property
    def shape(self) -> Shape:
        """The shape of a forward call; when decoding, the context's."""
        p = self.cell.place
        return Shape(p.batch, p.heads, self.kv_heads, p.seq_len, p.seq_len, p.head_dim, p.head_dim)

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
        sizes = f"n{p.seq_len}-b{p.batch}-h{p.heads}-kv{self.kv_heads}-d{p.head_dim}"
        how = f"{p.dtype}-{p.device}-t{p.threads or 'default'}-{'causal' if p.causal else 'all'}"
        unusual = {"cold": p.cache == "cold", "compiled": p.compiled, "graph": p.cuda_graph}
        how += "".join(f"-{name}" for name, so in unusual.items() if so)
        return f"{c.suite}/{what}/{self.variant}/{sizes}/{how}#{self.digest}"

    @property
    def digest(self) -> str:
        """Of everything that the result depends on, however the variant was written."""
        cell = asdict(self.cell)
        del cell["target"]  # where the task is found is no part of what it does
        cell["keys"] = self.keys.model_dump(mode="json", include=dict(self.cell.keys).keys())
        content = asdict(self) | {"cell": cell, "protocol": PROTOCOL}
        # parts of a union in another order, or a default written out, are the same case
        content["variant"] = "|".join(sorted(s.name for s in parse_union(self.variant)))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def create(self, *, backend: str | None = None) -> Attention:
        """The mechanism of this case, on its device and in its dtype; with ``backend`` its oracle, say."""
        import torch

        attn = create(
            _without_backend(self.variant), dims=self.dims, seed=self.cell.effort.seed, backend=backend or self.backend
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
            kv_heads=self.kv_heads,
            kv_len=cell.place.seq_len,
        )


def make_case(cell: Cell, variant: str, kv_heads: int | None) -> Case:
    """The case of a variant in a cell. kv_heads: the cell's, if it says; else the mechanism's own, else heads.

    Raises `UsageError` for a mechanism or option that does not exist or does not agree with the cell.
    """
    task = find_task(cell.target)
    if not task.mechanisms:
        heads = kv_heads or cell.place.heads
        return Case(cell=cell, variant=variant, kv_heads=heads, fingerprint=task_fingerprint(task))
    place = cell.place
    dims = Dims(heads=place.heads, head_dim=place.head_dim, max_len=place.max_len, kv_heads=kv_heads)
    attn = create(_without_backend(variant), dims=dims, seed=cell.effort.seed)
    names = [spec.name for spec in parse_union(variant)]
    return Case(
        cell=cell,
        variant=variant,
        kv_heads=attn.kv_heads or kv_heads or place.heads,
        options=json.dumps(effective_options(attn) if len(names) == 1 else attn.spec, sort_keys=True, default=str),
        backend=parse_union(variant)[0].backend if len(names) == 1 else None,
        family=entry_of(names[0]).family,
        fingerprint=fingerprint(type(attn)) + task_fingerprint(task),
    )


def takes(cell: Cell, variant: str, kv_heads: int | None) -> bool:
    """Whether a variant runs with the cell's key-value heads, or insists on another number."""
    if not find_task(cell.target).mechanisms:
        return True
    dims = Dims(heads=cell.place.heads, head_dim=cell.place.head_dim, max_len=cell.place.max_len)
    own = create(_without_backend(variant), dims=dims, seed=cell.effort.seed).kv_heads
    return kv_heads is None or own in (None, kv_heads)


def group_by_cell(cases: Iterable[Case]) -> list[tuple[Cell, list[Case]]]:
    """Cases grouped by the cell in which they are compared, in the plan's order."""
    groups: dict[Cell, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.cell, []).append(case)
    return list(groups.items())


def _without_backend(variant: str) -> str:
    return "|".join(":".join(p for p in part.split(":") if not p.startswith("backend=")) for part in variant.split("|"))


def task_fingerprint(task: Task) -> str:
    """A digest of the file of a plug-in's task; empty for our own, of which `PROTOCOL` speaks."""
    file = inspect.getsourcefile(task.plan)
    own = file is None or Path(file).is_relative_to(Path(sys.modules["efficient_attn"].__file__ or "").parent)
    return "" if own or file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]


@cache
def fingerprint(cls: type[Attention]) -> str:
    """A digest of the sources a mechanism runs: its own class's and bases' files, and all that they are made of."""
    files = {inspect.getsourcefile(c) for c in cls.__mro__ if c.__module__.split(".")[0] not in ("builtins", "torch")}
    package = Path(sys.modules["efficient_attn"].__file__ or "").parent
    files |= {str(path) for pattern in MATERIAL for path in package.glob(pattern)}
    digest = hashlib.sha256()
    for content in sorted(Path(file).read_bytes() for file in files if file):  # wherever they lie, whatever their order
        digest.update(content)
    return digest.hexdigest()[:12]


def as_json(case: Case) -> dict[str, Any]:
    """A planned case for programs to read."""
    flat = asdict(case)
    cell = flat.pop("cell")
    return {"case_key": case.key, **cell.pop("place"), **cell.pop("effort"), **cell, "keys": dict(cell["keys"]), **flat}
