"""One layer swapped, the others as they are: which layers bear another attention, and which do not."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from .bundled import Loaded, load
from .segments import compare, cut_segment
from .texts import Text
from .transformers import register, swapped


@dataclass(frozen=True, kw_only=True, eq=False)
class OneLayer:
    """A model, a segment of tokens ``[1, N]``, and one of its layers.

    out: what the model makes of the segment as it is. before: what the layer before gave, which other passes take up.
    """

    loaded: Loaded
    tokens: Tensor
    layer: int
    out: Tensor
    before: Any

    @classmethod
    def open(cls, model: str, text: str, length: int, number: int, own: str, layer: int) -> OneLayer:
        """Load the model and let it read the segment. own: the spec of its own attention."""
        loaded, kept = load(model), []
        tokens = cut_segment(loaded, Text.find(text), length, number)
        loaded.model.set_attn_implementation(register(own))
        blocks = find_blocks(loaded.model)
        hook = blocks[max(layer - 1, 0)].register_forward_hook(lambda _, __, out: kept.append(out))
        try:
            out = _read(loaded, tokens)
        finally:
            hook.remove()
        return cls(loaded=loaded, tokens=tokens, layer=layer, out=out, before=kept[0])

    def read(self, spec: str) -> Tensor:
        """The output with a mechanism in the one layer; what comes before it is not worked out again."""
        blocks = find_blocks(self.loaded.model)
        with swapped(self.layer, spec), ExitStack() as stack:
            for block in blocks[: self.layer]:  # only the last one's output is looked at
                block.forward = lambda *_, **__: self.before
                stack.callback(delattr, block, "forward")
            return _read(self.loaded, self.tokens)

    def compare(self, out: Tensor) -> dict[str, float | None]:
        """What an output loses against the model's own, by name."""
        return compare(self.loaded, out, self.out, self.tokens)


def find_blocks(model: Any) -> list[nn.Module]:
    """The layers in order. Raises `UsageError` for a model that does not hold them in one list."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(lists) != 1:
        raise UsageError(f"{type(model).__name__}: its {count} layers are not one list, so none can be swapped alone")
    return list(lists[0])


def _read(loaded: Loaded, tokens: Tensor) -> Tensor:
    """Logits ``[N, V]``, or an encoder's last hidden rows."""
    given = {"use_cache": False} if loaded.sizes.kind == "decoder" else {}
    with torch.inference_mode():
        return loaded.model(tokens, **given)[0][0]
