"""The case: one mechanism in one group of a plan, everything needed to run it again, and its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pydantic import BaseModel

from ..contract.mechanism import Attention
from ..contract.shapes import Dims, Shape
from ..errors import make_deprecated_alias
from ..registry import create
from ..results.rows import Row
from ..results.sanitize import sanitize_line
from ..spec import Spec, Union
from .case_config import Group

PROTOCOL = 5  # increase it when measuring changes so that old and new results should not be compared


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mechanism in a group. options: all of them, as JSON. fingerprint: the digest of its source files. budget: the
    one that its options were fitted to."""

    group: Group
    variant: Spec | Union
    kv_heads: int
    fingerprint: str
    options: str = "{}"
    backend: str | None = None
    family: str | None = None
    budget: str | None = None
    keys_model: type[BaseModel] | None = field(default=None, compare=False, repr=False)

    cell = make_deprecated_alias("cell", "group")

    @property
    def dims(self) -> Dims:
        """The sizes that a mechanism is created with."""
        config = self.group.config
        value_dim = config.head_dim if config.mode else None  # captured values have their own widths
        sizes = {"head_dim": config.head_dim, "value_dim": value_dim, "max_len": config.max_len}
        return Dims(heads=config.heads, kv_heads=self.kv_heads, **sizes)

    @property
    def shape(self) -> Shape:
        """The shape of a forward call; when decoding, the context's; packed, that of all rows one after another."""
        c = self.group.config
        batch, n = (1, sum(self.row_lengths)) if c.fill == "packed" else (c.batch, c.seq_len)
        return Shape(batch, c.heads, self.kv_heads, n, n, c.head_dim, c.head_dim)

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """The length of each row of the batch without padding."""
        return self.group.config.row_lengths(self.group.sampling.seed)

    @property
    def keys(self) -> Any:
        """The task's keys in this group, as an instance of the task's model."""
        assert self.keys_model is not None, "a worker sets keys_model, as classes of plug-ins cannot be pickled"
        return self.keys_model(**dict(self.group.keys))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "keys_model": None}

    @property
    def is_baseline(self) -> bool:
        """Whether it is the baseline of its group."""
        return self.variant == self.group.baseline and self.group.baseline_kv_heads in (None, self.kv_heads)

    @property
    def key(self) -> str:
        """A readable name, and a digest of everything that the result depends on."""
        g, c = self.group, self.group.config
        task_text = f"{g.part}/{c.mode or g.task}{'' if c.layer is None else f'-layer{c.layer}'}"
        task_text += "" if c.segment is None else f"-{c.inputs.partition(':')[0]}-segment{c.segment}"
        task_text += "-layers" if g.of_blocks else ""
        names_inputs = c.mode is None and c.layer is None and c.segment is None and c.inputs != "normal"
        task_text += f"-{c.inputs}" if names_inputs else ""
        sizes = f"n{c.seq_len}-b{c.batch}-h{c.heads}-kv{self.kv_heads}-d{c.head_dim}"
        settings = f"{c.dtype}-{c.device}-t{c.threads or 'default'}-{'causal' if c.causal else 'all'}"
        flags = {"cold": c.cache == "cold", "compiled": c.compiled, "graph": c.cuda_graph, c.fill: c.fill != "full"}
        settings += "".join(f"-{name}" for name, is_set in flags.items() if is_set)
        return sanitize_line(f"{g.suite}/{task_text}/{self.variant}/{sizes}/{settings}#{self.digest}")  # as in rows

    @property
    def digest(self) -> str:
        """A digest of everything that the result depends on; it does not depend on how the variant is written."""
        group = asdict(self.group)
        del group["target"]  # the module that defines the task may be moved
        for name, default in (("fill", "full"), ("segment", None)):
            if getattr(self.group.config, name) == default:
                del group["config"][name]  # these fields are newer than the digests of published cases
        if not self.group.of_blocks:
            del group["of_blocks"]
        group["keys"] = self.keys.model_dump(mode="json", include=dict(self.group.keys).keys())
        content = asdict(self) | {"group": group, "protocol": PROTOCOL}
        del content["keys_model"]
        if self.budget is None:
            del content["budget"]
        # parts of a union in another order, or a default written out, are the same case
        content["variant"] = "|".join(sorted(self.variant.names))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def create(self, *, backend: str | None = None) -> Attention:
        """The mechanism of this case, on its device and in its dtype; ``backend="dense"`` gives its reference
        implementation."""
        import torch

        config, seed = self.group.config, self.group.sampling.seed
        attn = create(self.variant.without_backend(), dims=self.dims, seed=seed, backend=backend or self.backend)
        return attn.to(device=config.device, dtype=getattr(torch, config.dtype))

    def is_random(self) -> bool:
        """Whether another seed gives another mechanism."""
        import torch

        spec = self.variant.without_backend()
        first, second = (create(spec, dims=self.dims, seed=seed).state_dict() for seed in range(2))
        return any(not torch.equal(tensor, second[name]) for name, tensor in first.items())

    def row(self) -> Row:
        """The row with all values that are known before measuring."""
        group, columns = self.group, {f.name for f in fields(Row)}
        values = asdict(group.config) | {name: getattr(group, name) for name in ("suite", "part", "task", "baseline")}
        values |= {name: getattr(self, name) for name in ("backend", "family", "options", "budget", "kv_heads")}
        return Row(
            **{name: value for name, value in values.items() if name in columns},
            seed=group.sampling.seed,
            case_key=self.key,
            variant=str(self.variant),
            kv_len=group.config.seq_len,
        )


def group_cases(cases: Iterable[Case]) -> list[tuple[Group, list[Case]]]:
    """Cases by group, in the order of the plan."""
    groups: dict[Group, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    return list(groups.items())


def as_json(case: Case) -> dict[str, Any]:
    """A planned case for programs to read."""
    fields: dict[str, Any] = {**asdict(case), "variant": str(case.variant)}
    group = fields.pop("group")
    del fields["keys_model"]
    config, sampling = group.pop("config"), group.pop("sampling")
    return {"case_key": case.key, **config, **sampling, **group, "keys": dict(group["keys"]), **fields}
