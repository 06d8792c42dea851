"""The origin of an instance."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..spec import Spec, Union
from .shapes import Dims


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of an instance. options: all of them, defaults included. Empty for instances not made by `create`."""

    spec: Spec | Union | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    dims: Dims = Dims()
    seed: int = 0
