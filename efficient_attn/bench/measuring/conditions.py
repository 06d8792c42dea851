"""The conditions under which a session measures its groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...engines.local import LocalEngine, Method, choose_method
from ...engines.turns import Turns
from ...variants import CATALOGUE

if TYPE_CHECKING:  # torch is not imported here, because the fork server imports it at the same time
    from ...instruments.roofline import Roofline
    from .kernel_choices import Choices

Setting: TypeAlias = tuple[str, str, int | None]  # device, dtype and threads

# imported once, by the fork server: what workers measure, so that plug-ins cannot replace it before it is recorded, and
# what they measure with
PRELOAD = (
    *dict.fromkeys(entry.target.partition(":")[0] for entry in CATALOGUE),
    "efficient_attn.bench.measuring.preparation",
    "efficient_attn.bench.measuring.round_job",
)


def make_engine(method: Method | None = None) -> LocalEngine:
    """The engine of a run. All engines of a process share the fork server that the first one starts, and its imports:
    what it has not imported, every worker imports again."""
    return LocalEngine(method or choose_method(), preload=PRELOAD)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """timeout_s: time limit of a case. memory_bytes: its memory limit beyond an idle worker's; available_bytes: for all
    cases of a group together. gpu_bytes: a case's limit of a GPU's memory, by default none. jobs: how many cases
    are evaluated at the same time, at most. choices: timings by which kernels are selected. inspections: each
    measurement of the machine, with when it was made. folder: the run's. turns: with another run."""

    timeout_s: float = 600.0
    memory_bytes: int | None = None
    available_bytes: int | None = None
    gpu_bytes: int | None = None
    jobs: int = 1
    engine: LocalEngine = field(default_factory=make_engine)
    choices: Choices = field(default_factory=dict)
    folder: Path | None = None
    turns: Turns = field(default_factory=Turns)
    inspections: dict[Setting, list[tuple[str, Roofline]]] = field(default_factory=dict)

    def limit_memory(self, device: str, cases: int | None = None) -> int | None:
        """The bytes that a worker may allocate in a device's memory: for one case at a time, or so many together."""
        each = self.gpu_bytes if device == "cuda" else self.memory_bytes
        if cases is None:
            return each
        limits = each and each * cases, None if device == "cuda" else self.available_bytes
        return min((size for size in limits if size is not None), default=None)

    @property
    def rooflines(self) -> dict[Setting, Roofline]:
        """The highest rates of all inspections."""
        from ...instruments.roofline import merge_rooflines

        return {setting: merge_rooflines([roofline for _, roofline in x]) for setting, x in self.inspections.items()}
