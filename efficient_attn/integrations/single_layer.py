"""Sensitivity of single layers: passes with another mechanism in one layer, and the others unchanged."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..spec import SpecLike
from .bundled import LoadedModel
from .transformers import register, swapped


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSwap:
    """A model, a segment of tokens ``[1, N]``, and one of its layers.

    own_out: the original model's output. previous_out: the preceding layer's output, from which other passes continue.
    """

    loaded_model: LoadedModel
    tokens: Tensor
    layer: int
    own_out: Tensor
    previous_out: Any

    @classmethod
    def read(cls, loaded_model: LoadedModel, tokens: Tensor, own_spec: str, layer: int) -> LayerSwap:
        """Let the model read the segment. own_spec: the spec of its own attention."""
        outputs = []
        loaded_model.model.set_attn_implementation(register(own_spec))
        blocks = list_layers(loaded_model.model)
        hook = blocks[max(layer - 1, 0)].register_forward_hook(lambda _, __, out: outputs.append(out))
        try:
            out = _run_model(loaded_model, tokens)
        finally:
            hook.remove()
        return cls(loaded_model=loaded_model, tokens=tokens, layer=layer, own_out=out, previous_out=outputs[0])

    def run(self, spec: SpecLike) -> Tensor:
        """The output with a mechanism in the one layer; earlier layers are not computed again."""
        blocks = list_layers(self.loaded_model.model)
        with swapped(self.layer, spec), ExitStack() as stack:
            for block in blocks[: self.layer]:  # whose outputs are known; only the last one's is used
                block.forward = lambda *_, **__: self.previous_out
                stack.callback(delattr, block, "forward")
            return _run_model(self.loaded_model, self.tokens)


def list_layers(model: Any) -> list[nn.Module]:
    """The layers in order. Raises `UsageError` for a model whose layers are not in one list."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(lists) != 1:
        raise UsageError(
            f"{type(model).__name__}: its {count} layers are not in one list, so single layers cannot be swapped"
        )
    return list(lists[0])


def _run_model(loaded_model: LoadedModel, tokens: Tensor) -> Tensor:
    """Logits ``[N, V]``, or an encoder's last hidden states."""
    options = {"use_cache": False} if loaded_model.sizes.kind == "decoder" else {}
    with torch.inference_mode():
        return loaded_model.model(tokens, **options)[0][0]
