"""The conditions under which a session measures its cells, whatever they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ...engines.job import Engine
from ...engines.local import LocalEngine
from ...instruments.roofline import Roofline
from .kernel_choices import Choices

Setting: TypeAlias = tuple[str, str, int | None]  # device, dtype and threads

PRELOAD = ("efficient_attn.bench.measuring.jobs",)  # all that measures, imported once


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """timeout_s: what a case may take in all. memory_bytes: what it may take beyond an idle worker; available_bytes:
    what all of a cell's cases may take together. choices: between forms of kernels. ceilings: the highest so far;
    looks: each time that the machine was looked at, and when in the run that was. folder: the run's.
    """

    timeout_s: float = 600.0
    memory_bytes: int | None = None
    available_bytes: int | None = None
    engine: Engine = field(default_factory=lambda: LocalEngine(preload=PRELOAD))
    choices: Choices = field(default_factory=dict)
    rooflines: dict[Setting, Roofline] = field(default_factory=dict)
    folder: Path | None = None
    inspections: dict[Setting, list[tuple[str, Roofline]]] = field(default_factory=dict)
