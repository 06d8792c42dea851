"""The origin of an instance."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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


class HasOrigin:
    """What a mechanism was made from."""

    origin: Origin = Origin()

    @property
    def spec(self) -> str:
        """The name with its options; empty for instances not made by `create`."""
        return str(self.origin.spec or "")

    @property
    def label(self) -> str:
        """Its name in messages: the spec, or else the class."""
        return self.spec or type(self).__name__

    @property
    def dims(self) -> Dims:
        """The known sizes of the tensors."""
        return self.origin.dims

    @dims.setter
    def dims(self, dims: Dims) -> None:
        self.origin = replace(self.origin, dims=dims)

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return self.origin.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.origin = replace(self.origin, seed=seed)
