"""Descriptions of mechanisms, from instances."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..spec import SpecLike, Union, parse
from ..variants import Entry
from .entries import entry_of
from .factory import create

if TYPE_CHECKING:
    from ..contract.shapes import Dims
    from ..contract.traits import Growth, Traits
    from ..patterns import Pattern


@dataclass(frozen=True)
class Info:
    """The description of a mechanism. pattern: which pairs it keeps, if it is sparse."""

    name: str
    family: str
    sentence: str
    spec: str
    options: Mapping[str, Any]
    backends: tuple[str, ...]
    backend: str
    traits: Traits
    growth: Growth
    parameters: int
    doc: str
    source: str
    pattern: Pattern | None = None


def info(variant: SpecLike, /, *, dims: Dims | None = None) -> Info:
    """Describe a mechanism with its options, from an instance.

    Default dims: 1024 positions and heads of width 64, and eight heads for mechanisms that require their number.
    """
    from ..contract.shapes import Dims
    from ..patterns import Pattern

    spec = parse(variant)
    try:
        attn = create(spec, dims=dims or Dims(head_dim=64, max_len=1024))
    except UsageError:
        if dims is not None:
            raise
        attn = create(spec, dims=Dims(heads=8, head_dim=64, max_len=1024))
    pattern, cls = getattr(attn, "pattern", None), type(attn)
    union_entry = Entry("union", "", "sparse", "A union of patterns.")
    entry = union_entry if isinstance(spec, Union) else entry_of(spec.name)
    return Info(
        name=entry.name,
        family=entry.family,
        sentence=entry.sentence,
        spec=attn.spec,
        options=attn.origin.options,
        backends=cls.backends,
        backend=attn.backend,
        traits=attn.traits,
        growth=attn.growth,
        parameters=sum(p.numel() for p in attn.parameters()),
        doc=inspect.getdoc(cls) or "",
        source=inspect.getsourcefile(cls) or "",
        pattern=pattern if isinstance(pattern, Pattern) else None,
    )
