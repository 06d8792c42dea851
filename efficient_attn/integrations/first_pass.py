"""The check that a model which is given a mechanism by its name calls it: when it is set, and in its first pass.

For a model that computes attention itself transformers logs a warning, or nothing, and the model runs as before.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import UnsupportedError
from .observers import Meter, watch
from .state_cache import PREFIX, SWAPPED

OWN_ATTENTION = "computes attention itself, not through transformers' AttentionInterface, so nothing can be swapped"

_passes: WeakKeyDictionary[nn.Module, tuple[AbstractContextManager[Meter], Meter]] = WeakKeyDictionary()


def check_named_mechanisms() -> None:
    """Check all models that are given a mechanism by its name from now on, which raise `UnsupportedError`."""
    find, set_name = PreTrainedModel.get_correct_attn_implementation, PreTrainedModel.set_attn_implementation

    @functools.wraps(find)
    def find_and_check(self: Any, *args: Any, **options: Any) -> str:
        name = find(self, *args, **options)
        if _is_mechanism(name) and not self._can_set_attn_implementation():  # by transformers' reading of its source
            raise UnsupportedError(f"{type(self).__name__} {OWN_ATTENTION}")
        if _is_mechanism(name) and _begin_pass not in self._forward_pre_hooks.values():
            self.register_forward_pre_hook(_begin_pass)
            self.register_forward_hook(_end_pass)
        return name

    @functools.wraps(set_name)
    def set_and_check(self: Any, attn_implementation: Any, *args: Any, **options: Any) -> None:
        set_name(self, attn_implementation, *args, **options)
        if _is_mechanism(attn_implementation) and self.config._attn_implementation != attn_implementation:
            raise UnsupportedError(f"{type(self).__name__} {OWN_ATTENTION}")

    PreTrainedModel.get_correct_attn_implementation = find_and_check
    PreTrainedModel.set_attn_implementation = set_and_check


def _is_mechanism(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(PREFIX) and not name.startswith(SWAPPED)


def _begin_pass(model: nn.Module, _: Any) -> None:
    if not torch.compiler.is_compiling() and model not in _passes:  # an earlier pass may have ended with an error
        context = watch()
        _passes[model] = context, context.__enter__()


def _end_pass(model: nn.Module, *_: Any) -> None:
    if torch.compiler.is_compiling() or model not in _passes:
        return
    context, meter = _passes.pop(model)
    context.__exit__(None, None, None)
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        for number in [number for number, hook in hooks.items() if hook in (_begin_pass, _end_pass)]:
            del hooks[number]
    runs_mechanism = _is_mechanism(getattr(model.config, "_attn_implementation", None))
    if runs_mechanism and not meter.calls and any("Attention" in type(module).__name__ for module in model.modules()):
        raise UnsupportedError(f"{type(model).__name__} {OWN_ATTENTION}")
