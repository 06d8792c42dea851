"""What one part of a suite requests of a task: names, keys, axes, sampling plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from ...errors import make_deprecated_alias
from ..case_config import CaseConfig, Group, Sampling

DEFAULTS: dict[str, tuple[Any, ...]] = {
    "seq_len": (1024,),
    "causal": (False,),
    "dtype": (),
    "device": ("cpu",),
    "threads": (None,),
    "batch": (1,),
    "heads": (8,),
    "kv_heads": (None,),
    "head_dim": (64,),
    "cache": ("warm",),
    "compiled": (False,),
    "cuda_graph": (False,),
    "fill": ("full",),
    "budget": (None,),
}
DTYPES = {"cuda": ("float16", "bfloat16")}


@dataclass(frozen=True)
class AxisGrid:
    """Every axis with its values, defaults included. points: the combinations that a design selects, None for all."""

    axes: Mapping[str, tuple[Any, ...]]
    points: tuple[Mapping[str, Any], ...] | None = None

    def __getitem__(self, axis: str) -> tuple[Any, ...]:
        return self.axes[axis]

    def combine(self, *names: str, dtypes: Mapping[str, tuple[str, ...]] = DTYPES) -> list[dict[str, Any]]:
        """Every combination of devices, their dtypes, and these axes that is measured, as keyword arguments. dtypes: of
        devices, if the suite sets none; elsewhere float32."""
        if self.points is not None:
            all_names = ("device", "dtype", *names)
            combinations = dict.fromkeys(tuple(point[name] for name in all_names) for point in self.points)
            return [dict(zip(all_names, values, strict=True)) for values in combinations]
        return [
            {"device": device, "dtype": dtype, **dict(zip(names, values, strict=True))}
            for device in self["device"]
            for dtype in self["dtype"] or dtypes.get(device, ("float32",))
            for values in product(*(self[name] for name in names))
        ]


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """words: the names in ``measure`` that select this task. keys: the task's own, validated. quick: whether a short
    run is sufficient. variants, blocks: whether the part has any. names: of the variants, as specs."""

    suite: str
    part: str
    task: str
    target: str
    words: tuple[str, ...]
    keys: Any
    grid: AxisGrid
    sampling: Sampling
    baseline: str | None = None
    quick: bool = False
    variants: bool = True
    blocks: bool = False
    names: tuple[str, ...] = ()

    effort = make_deprecated_alias("effort", "sampling")
    cell = make_deprecated_alias("cell", "make_group")

    def make_group(self, config: CaseConfig, *, of_blocks: bool = False, **keys: Any) -> Group:
        """A group at a configuration. keys: values of the task's keys for it, by name. of_blocks: whether its cases are
        layers."""
        return Group(
            suite=self.suite,
            part=self.part,
            task=self.task,
            target=self.target,
            config=config,
            sampling=self.sampling,
            baseline=self.baseline,
            of_blocks=of_blocks,
            keys=tuple((name, _make_hashable(keys[name])) for name in sorted(keys)),
        )


def _make_hashable(value: Any) -> Any:
    return tuple(map(_make_hashable, value)) if isinstance(value, list | tuple) else value
