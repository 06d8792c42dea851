"""Planted bugs that show in training, in evaluation, or in what is pickled, and not in a single call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..contract.traits import Traits
from .subject import Subject


def ignores_dropout(cls: type[Attention]) -> dict[str, Any]:
    return {"dropping": property(lambda self: 0.0)}


def drops_in_evaluation(cls: type[Attention]) -> dict[str, Any]:
    return {"dropping": property(lambda self: self.dropout)}


def forgets_to_scale(cls: type[Attention]) -> dict[str, Any]:
    """What is left of the weights is not divided by the probability of being left."""

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return cls.compute(self, q, k, v, mask, **inputs) * (1 - self.dropping)

    return {"compute": compute, **claims_dropout(cls)}


def claims_dropout(cls: type[Attention]) -> dict[str, Any]:
    """The trait is there, and nothing is dropped."""

    def traits(self: Attention) -> Traits:
        return replace(cls.traits.__get__(self), dropout=True)

    return {"traits": property(traits)}


def does_drop(subject: Subject) -> str | None:
    return "it claims dropout, and does drop weights" if subject.traits.dropout else None


def keeps_a_lambda(cls: type[Attention]) -> dict[str, Any]:
    """The first call leaves a function on the module that no pickle can name."""

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = cls.compute(self, q, k, v, mask, **inputs)
        self.__dict__["kept"] = lambda: None
        return out

    return {"compute": compute}


def loses_its_backend(cls: type[Attention]) -> dict[str, Any]:
    """What is pickled comes back with the dense backend."""

    def state(self: Attention) -> dict[str, Any]:
        return {**self.__dict__, "_backend": "dense"}

    return {"__getstate__": state}
