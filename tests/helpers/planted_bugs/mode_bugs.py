"""Bugs of dropout and of pickling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.traits import Traits
from efficient_attn.testing.subject import Subject

from .planting import planter

plant = planter("modes")


def _ignores_dropout(cls: type[Attention]) -> dict[str, Any]:
    return {"dropping": property(lambda self: 0.0)}


def _drops_in_evaluation(cls: type[Attention]) -> dict[str, Any]:
    return {"dropping": property(lambda self: self.dropout)}


def _forgets_to_scale(cls: type[Attention]) -> dict[str, Any]:
    """The remaining weights are not divided by the probability of being kept."""

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return cls.compute(self, q, k, v, mask, **inputs) * (1 - self.dropping)

    return {"compute": compute, **_claims_dropout(cls)}


def _claims_dropout(cls: type[Attention]) -> dict[str, Any]:
    """The trait is declared, but no weight is dropped."""

    def traits(self: Attention) -> Traits:
        return replace(cls.traits.__get__(self), dropout=True)

    return {"traits": property(traits)}


def _does_drop(subject: Subject) -> str | None:
    return "it declares dropout and drops weights" if subject.traits.dropout else None


def _keeps_a_lambda(cls: type[Attention]) -> dict[str, Any]:
    """A call stores a lambda on the module, which cannot be pickled."""

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = cls.compute(self, q, k, v, mask, **inputs)
        self.__dict__["stored"] = lambda: None
        return out

    return {"compute": compute}


def _loses_its_backend(cls: type[Attention]) -> dict[str, Any]:
    """An unpickled instance has the dense backend."""

    def state(self: Attention) -> dict[str, Any]:
        return {**self.__dict__, "_backend": "dense"}

    return {"__getstate__": state}


BUGS = (
    plant("ignores_dropout", "dropout is declared, but ignored", _ignores_dropout,
          ("dropout",), suspects=("dropout_drops_weights", "dropout_mean")),
    plant("drops_in_evaluation", "weights are dropped in evaluation too", _drops_in_evaluation,
          ("dropout",), suspects=("dropout_is_never_ignored",)),
    plant("forgets_to_scale", "the remaining weights are not scaled up", _forgets_to_scale,
          ("dropout",), suspects=("dropout_drops_weights", "dropout_mean")),
    plant("claims_dropout", "dropout is declared and nothing is dropped", _claims_dropout,
          (), _does_drop, ("dropout_drops_weights", "dropout_mean")),
    plant("keeps_a_lambda", "a call leaves a lambda on the module", _keeps_a_lambda, suspects=("pickles",)),
    plant("loses_its_backend", "an unpickled instance has another backend", _loses_its_backend, suspects=("pickles",)),
)  # fmt: skip
