"""The case: one mechanism in one cell of a plan, all that it takes to run it again, and the key that names it."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ..contract.mechanism import Attention
from ..contract.shapes import Dims, Shape
from ..registry import create, effective_options, entry_of
from ..results.rows import Row
from ..spec import parse_union

RESERVE = 32  # decode steps behind a context, at most: it then stays what it is said to be
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
class Cell:
    """Where mechanisms are compared: one shape, dtype, device and mode. All its variants are measured together.

    baseline: the variant that others are compared with; baseline_kv_heads: in which of its cases, where it has several.
    memory_budget: bytes for the state of a decode step.
    """

    suite: str
    part: str
    task: str
    mode: str | None
    device: str
    dtype: str
    threads: int | None
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    max_len: int
    seed: int
    rounds: int
    max_rounds: int
    processes: int
    half_width: float
    budget_s: float
    cache: str = "warm"
    compiled: bool = False
    cuda_graph: bool = False
    memory: bool = False
    inputs: str = "normal"
    layer: int | None = None
    baseline: str | None = None
    baseline_kv_heads: int | None = None
    memory_budget: int | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mechanism in a cell. options: all of them, as JSON. fingerprint: of the sources that it runs."""

    cell: Cell
    variant: str
    kv_heads: int
    options: str
    backend: str | None
    family: str
    fingerprint: str

    @property
    def dims(self) -> Dims:
        c = self.cell
        value_dim = c.head_dim if c.mode else None  # captured values have widths of their own
        sizes = {"head_dim": c.head_dim, "value_dim": value_dim, "max_len": c.max_len}
        return Dims(heads=c.heads, kv_heads=self.kv_heads, **sizes)

    @property
    def shape(self) -> Shape:
        """The shape of a forward call; when decoding, the context's."""
        c = self.cell
        return Shape(c.batch, c.heads, self.kv_heads, c.seq_len, c.seq_len, c.head_dim, c.head_dim)

    @property
    def is_baseline(self) -> bool:
        """Whether the others of its cell are compared with it."""
        return self.variant == self.cell.baseline and self.cell.baseline_kv_heads in (None, self.kv_heads)

    @property
    def key(self) -> str:
        """A name that people can read, and a digest of everything that the result depends on."""
        c = self.cell
        what = f"{c.part}/{c.mode or c.task}{'' if c.layer is None else f'-layer{c.layer}'}"
        sizes = f"n{c.seq_len}-b{c.batch}-h{c.heads}-kv{self.kv_heads}-d{c.head_dim}"
        how = f"{c.dtype}-{c.device}-t{c.threads or 'default'}-{'causal' if c.causal else 'all'}"
        unusual = {"cold": c.cache == "cold", "compiled": c.compiled, "graph": c.cuda_graph}
        how += "".join(f"-{name}" for name, so in unusual.items() if so)
        return f"{c.suite}/{what}/{self.variant}/{sizes}/{how}#{self.digest}"

    @property
    def digest(self) -> str:
        """Of everything that the result depends on, however the variant was written."""
        content = asdict(self) | {"protocol": PROTOCOL}
        # parts of a union in another order, or a default written out, are the same case
        content["variant"] = "|".join(sorted(s.name for s in parse_union(self.variant)))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def create(self, *, backend: str | None = None) -> Attention:
        """The mechanism of this case, on its device and in its dtype; with ``backend`` its oracle, say."""
        import torch

        attn = create(
            _without_backend(self.variant), dims=self.dims, seed=self.cell.seed, backend=backend or self.backend
        )
        return attn.to(device=self.cell.device, dtype=getattr(torch, self.cell.dtype))

    def row(self) -> Row:
        """The row with everything known before measuring."""
        c, mine = self.cell, {f.name for f in fields(Row)}
        wanted = {"rounds", "processes"}  # of these the row tells what was measured
        known = {name: value for name, value in asdict(c).items() if name in mine - wanted}
        return Row(
            **known,
            case_key=self.key,
            variant=self.variant,
            backend=self.backend,
            family=self.family,
            options=self.options,
            kv_heads=self.kv_heads,
            kv_len=c.seq_len,
        )


def make_case(cell: Cell, variant: str, kv_heads: int | None) -> Case:
    """The case of a variant in a cell. kv_heads: the cell's, if it says; else the mechanism's own, else heads.

    Raises `UsageError` for a mechanism or option that does not exist or does not agree with the cell.
    """
    dims = Dims(heads=cell.heads, head_dim=cell.head_dim, max_len=cell.max_len, kv_heads=kv_heads)
    plain = _without_backend(variant)
    attn = create(plain, dims=dims, seed=cell.seed)
    names = [spec.name for spec in parse_union(variant)]
    return Case(
        cell=cell,
        variant=variant,
        kv_heads=attn.kv_heads or kv_heads or cell.heads,
        options=json.dumps(effective_options(attn) if len(names) == 1 else attn.spec, sort_keys=True, default=str),
        backend=parse_union(variant)[0].backend if len(names) == 1 else None,
        family=entry_of(names[0]).family,
        fingerprint=fingerprint(type(attn)),
    )


def takes(cell: Cell, variant: str, kv_heads: int | None) -> bool:
    """Whether a variant runs with the cell's key-value heads, or insists on another number."""
    dims = Dims(heads=cell.heads, head_dim=cell.head_dim, max_len=cell.max_len)
    own = create(_without_backend(variant), dims=dims, seed=cell.seed).kv_heads
    return kv_heads is None or own in (None, kv_heads)


def _without_backend(variant: str) -> str:
    return "|".join(":".join(p for p in part.split(":") if not p.startswith("backend=")) for part in variant.split("|"))


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
    return {"case_key": case.key, **flat.pop("cell"), **flat}
