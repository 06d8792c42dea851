"""What an instance was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..spec import Spec, Union
from .shapes import Dims


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What an instance was made from. options: all of them, defaults included. Empty where no registry made it."""

    spec: Spec | Union | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    dims: Dims = Dims()  # noqa: RUF009  (frozen)
    seed: int = 0
