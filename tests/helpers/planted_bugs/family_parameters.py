"""Bugs of parameters, buffers and options: folded weights, frozen parts, copies, options that steps ignore."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.spec import Spec
from efficient_attn.testing.probing import other_instances
from efficient_attn.testing.subject import Subject

from .methods import Methods
from .planting import planter

plant = planter("parameters", "updated_parameters", "later_loads")
Stored = Callable[[Attention], Mapping[str, Tensor]]


@contextmanager
def _using(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Compute with other values of parameters or buffers."""
    own = {name: x.data for name, x in tensors.items()}
    try:
        for name, x in tensors.items():
            x.data = values[name]
        yield
    finally:
        for name, x in tensors.items():
            x.data = own[name]


def _folded(stored: Stored, key: Callable[[Mapping[str, Tensor]], Any], *, always: bool = False) -> Methods:
    """Weights are folded at the first call of inference, and again if the key changes; always: in training too."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
            tensors = stored(self)
            if torch.is_grad_enabled() and not always:
                return cls.compute(self, q, k, v, mask, **inputs)
            found, kept = key(tensors), self.__dict__.get("_folded")
            if kept is None or kept[0] != found:
                kept = self.__dict__["_folded"] = found, {name: x.detach().clone() for name, x in tensors.items()}
            with _using(tensors, kept[1]):
                return cls.compute(self, q, k, v, mask, **inputs)

        return {"compute": compute}

    return methods


def _parameters(attn: Attention) -> Mapping[str, Tensor]:
    return dict(attn.named_parameters())


def _projections(attn: Attention) -> Mapping[str, Tensor]:
    """What random features and hashes draw; patterns read theirs when a state dict is loaded."""
    return {} if hasattr(attn, "pattern") else dict(attn.named_buffers())


def _versions(tensors: Mapping[str, Tensor]) -> list[int]:
    return [x._version for x in tensors.values()]


def _dtypes(tensors: Mapping[str, Tensor]) -> list[torch.dtype]:
    return [x.dtype for x in tensors.values()]


def _infers(when: Callable[[Attention, Tensor, Tensor, Tensor | None], bool]) -> Methods:
    """A condition chooses a path for inference, which builds no graph."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not when(self, q, k, v)):
                return cls.compute(self, q, k, v, mask, **inputs)

        return {"compute": compute}

    return methods


def _inputs_frozen(attn: Attention, q: Tensor, k: Tensor, v: Tensor | None) -> bool:
    return not any(x.requires_grad for x in (q, k, v) if x is not None)


def _weights_frozen(attn: Attention, q: Tensor, k: Tensor, v: Tensor | None) -> bool:
    parameters = [*attn.parameters()]
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def _copies_itself(cls: type[Attention]) -> dict[str, Any]:
    return {"__deepcopy__": lambda self, memo: self}


def _copies_shallowly(cls: type[Attention]) -> dict[str, Any]:
    """A copy has dictionaries of its own, with the same parameters."""

    def copied(self: Attention, memo: Any) -> Attention:
        other = cls.__new__(type(self))
        names = ("_parameters", "_buffers", "_modules")
        other.__dict__.update(self.__dict__ | {name: copy.copy(self.__dict__[name]) for name in names})
        return other

    return {"__deepcopy__": copied}


def _loads_once(cls: type[Attention]) -> dict[str, Any]:
    """After the first call a state dict is accepted and not loaded."""

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        self.__dict__["_is_built"] = True
        return cls.compute(self, q, k, v, mask, **inputs)

    def load(self: Attention, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return nn.Module.load_state_dict(self, self.state_dict() if "_is_built" in self.__dict__ else state, strict)

    return {"compute": compute, "load_state_dict": load}


def _changed_options(attn: Attention) -> bool:
    return isinstance(attn.origin.spec, Spec) and bool(attn.origin.spec.options)


def _default_steps(cls: type[Attention]) -> dict[str, Any]:
    """Steps were written for the default options."""

    def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        out, state = cls.advance(self, q, k, v, state, **inputs)
        return out * (1.01 if _changed_options(self) and q.shape[2] == 1 else 1), state

    return {"advance": advance}


def _default_padding(cls: type[Attention]) -> dict[str, Any]:
    """A call with other options ignores the key mask."""

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = cls.compute(self, q, k, v, mask, **inputs)
        return out * (1.01 if _changed_options(self) and mask.key_mask is not None else 1)

    return {"compute": compute}


def _without(stored: Stored) -> Callable[[Subject], str | None]:
    return lambda subject: None if stored(subject.attn) else "it has none"


def _without_options(subject: Subject) -> str | None:
    return None if any(True for _ in other_instances(subject)) else "no option changes its results"


BUGS = (
    plant("folds_weights", "projections are folded at the first call of inference and never again",
          _folded(_parameters, lambda tensors: 0), harmless=_without(_parameters)),
    plant("folds_by_version", "folded projections are renewed when a version counter changes, which .data does not",
          _folded(_parameters, _versions), harmless=_without(_parameters)),
    plant("folds_projections", "random projections are cached at the first call, so that a later load does nothing",
          _folded(_projections, _dtypes, always=True), harmless=_without(_projections), suspects=("later_loads",)),
    plant("folds_first_dtype", "random projections stay in the dtype of the first call",
          _folded(_projections, _versions, always=True), harmless=_without(_projections), suspects=("later_loads",)),
    plant("loads_once", "load_state_dict does nothing after the first call", _loads_once,
          harmless=lambda s: _without(_parameters)(s) and _without(_projections)(s), suspects=("later_loads",)),
    plant("infers_if_inputs_are_frozen", "no graph if no input requires a gradient", _infers(_inputs_frozen),
          ("gradient",), _without(_parameters), ("parameter_gradients",)),
    plant("infers_if_weights_are_frozen", "no graph if no parameter requires a gradient", _infers(_weights_frozen),
          ("gradient",), _without(_parameters), ("parameter_gradients",)),
    plant("copies_itself", "copy.deepcopy returns the instance", _copies_itself,
          suspects=("pickles", "copies_train_apart")),
    plant("copies_shallowly", "a deep copy shares its parameters", _copies_shallowly,
          harmless=_without(_parameters), suspects=("copies_train_apart",)),
    plant("default_steps", "steps are off by 1% unless all options have their defaults", _default_steps,
          ("decode",), _without_options, ("other_options",)),
    plant("default_padding", "padded calls are off by 1% unless all options have their defaults", _default_padding,
          ("padding",), _without_options, ("other_options",)),
)  # fmt: skip
