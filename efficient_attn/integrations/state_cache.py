"""Decode states of mechanisms as transformers' cache.

``model.generate(..., past_key_values=StateCache(model))``: windows store a ring buffer, linear attention its sums. A
layer of the cache returns new keys and values unchanged, and the mechanism's `step` adds them to its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ..contract.decode_state import select_state_rows
from ..errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from ..contract.mechanism import Attention
    from .model_masks import ModelMask

LAYER_ATTRIBUTE = "_efficient_attn_layer"  # of new keys: the cache layer, for the model layer that receives them


class StateLayer(CacheLayerMixin):
    """One layer's state, for up to ``max_len`` positions."""

    is_sliding = False

    def __init__(self, max_len: int) -> None:
        super().__init__()
        self.max_len, self.length, self.state = max_len, 0, None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The new keys and values, marked with this layer; they are stored when attention is computed."""
        self.lazy_initialization(key_states, value_states)
        keys = key_states.view_as(key_states)
        setattr(keys, LAYER_ATTRIBUTE, self)
        return keys, value_states

    def attend(self, attn: Attention, q: Tensor, k: Tensor, v: Tensor, model_mask: ModelMask) -> Tensor:
        """Outputs of the new positions over all so far. Raises `UnsupportedError` for padded and non-causal masks."""
        if model_mask.mask.pads_keys:
            raise UnsupportedError(
                f"{attn.label}: a state has no padding: give prompts of one length, or one at a time"
            )
        if not model_mask.mask.causal:
            raise UnsupportedError(f"{attn.label}: a state is causal, and this layer is not")
        if self.state is None:
            self.state = attn.init_state(q.shape[0], self.max_len, k.dtype, k.device)
        out, self.state = attn.step(q, k, v, self.state)
        self.length += q.shape[2]
        return out

    def copy_rows(self, rows: Sequence[int], batch: int) -> StateLayer:
        """A copy with these rows of the batch."""
        duplicate = copy(self)
        duplicate.state = select_state_rows(self.state, batch, rows)
        return duplicate

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.max_len

    def reset(self) -> None:
        self.length, self.state = 0, None

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        raise UnsupportedError("StateCache does not support beam search: decode greedily or by sampling")


class StateCache(Cache):
    """A cache of states, one for each layer. max_len: its capacity; by default the model's number of positions.

    Raises `UsageError` for a model that does not define its positions if ``max_len`` is not given.
    """

    def __init__(self, model: Any, max_len: int | None = None) -> None:
        config = model.config.get_text_config(decoder=True)
        longest = max_len or getattr(config, "max_position_embeddings", None)
        if not longest:
            name = type(model).__name__
            raise UsageError(f"StateCache: {name} does not define its number of positions; give max_len")
        if not str(attention := config._attn_implementation).startswith("efficient_attn:"):
            remedy = "call model.set_attn_implementation('efficient_attn:...') first"
            raise UsageError(f"StateCache: the model runs {attention!r}; {remedy}")
        super().__init__(layers=[StateLayer(longest) for _ in range(config.num_hidden_layers)])

    def copy_rows(self, rows: Sequence[int], *, batch: int = 1) -> StateCache:
        """An independent copy with these rows of a batch, which may be repeated."""
        duplicate = copy(self)
        duplicate.layers = [layer.copy_rows(rows, batch) for layer in self.layers if isinstance(layer, StateLayer)]
        return duplicate

    @property
    def states(self) -> list[Any]:
        """Every layer's state; ``ea.state_bytes`` counts their bytes."""
        return [layer.state for layer in self.layers if isinstance(layer, StateLayer)]


def find_state_layer(keys: Tensor) -> StateLayer | None:
    """The layer of a `StateCache` that returned these new keys, if any."""
    return getattr(keys, LAYER_ATTRIBUTE, None)
