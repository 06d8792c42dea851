"""Decode states of mechanisms as transformers' cache.

``model.generate(..., past_key_values=StateCache(model))``: windows store a ring buffer, linear attention its sums. A
layer of the cache returns new keys and values unchanged, and the mechanism's `step` adds them to its state. Layers that
``ea.swap`` leaves to the model's own attention keep all keys, as in transformers' own cache.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, LinearAttentionCacheLayerMixin

from ..contract.decode_state import select_state_rows
from ..errors import UnsupportedError, UsageError
from .evictions import Eviction, attend_and_reduce

if TYPE_CHECKING:
    from ..contract.mask import Mask
    from ..contract.mechanism import Attention
    from .model_masks import ModelMask

PREFIX = "efficient_attn:"  # of the names of attentions
SWAPPED = f"{PREFIX}swap-"  # followed by the phase and the model's own attention
SUBMODULE = "efficient_attn"  # of a swapped layer's attention: its mechanism

_waiting = threading.local()  # layer: the cache layer whose new keys wait for attention


class StateLayer(CacheLayerMixin):
    """One layer's state, for up to ``max_len`` positions. cache_key: the same for all layers of a cache. keep: the rule
    that reduces a cache of exact attention. pending: new positions that no attention has received yet."""

    is_sliding = False

    def __init__(self, max_len: int, cache_key: object, keep: Eviction | None = None) -> None:
        super().__init__()
        self.max_len, self.cache_key, self.keep = max_len, cache_key, keep
        self.length, self.batch, self.state, self.pending = 0, 0, None, 0
        self.starts: Tensor | None = None  # the first position of each row with left padding

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The new keys and values unchanged; they are stored when attention is computed, which a model does next, also
        if it changes them in between. Raises `UnsupportedError` if it has not done so with earlier ones."""
        self.lazy_initialization(key_states, value_states)
        require_received(self)
        earlier = take_waiting()
        if earlier is not None and earlier.cache_key is self.cache_key:
            require_received(earlier)
        self.pending, _waiting.layer = key_states.shape[2], self
        return key_states, value_states

    def expects(self, count: int, visible: int | None) -> bool:
        """Whether attention is for its new keys: as many, with a mask for all so far. It is not after a pass that ended
        before its attention. visible: keys that the mask is for, if known."""
        return count == self.pending and visible in (None, self.length + count)

    def attend(self, attn: Attention, q: Tensor, k: Tensor, v: Tensor, model_mask: ModelMask) -> Tensor:
        """Outputs of the new positions over all so far. Raises `UnsupportedError` for non-causal masks, and for padding
        other than that on the left of the first pass."""
        self._prepare(attn, k, model_mask)
        if self.keep is None:
            out, self.state = attn.step(q, k, v, self.state)
        elif self.length + q.shape[2] > self.max_len:
            raise UsageError(f"StateCache: max_len={self.max_len} positions, {self.length + q.shape[2]} are needed")
        else:
            out, self.state = attend_and_reduce(attn, self.keep, self.state, q, k, v)
        self.length += q.shape[2]
        return out

    def absorb(self, attn: Attention, k: Tensor, v: Tensor, model_mask: ModelMask) -> None:
        """Store the keys and values of a prompt that the model's own attention reads. Raises `UnsupportedError` as
        `attend`, and for a prompt in several passes, of which a later one needs earlier keys."""
        if self.length or self.keep is not None:
            self.pending = 0
            problem = "a prompt in several passes" if self.length else "a rule that drops keys"
            raise UnsupportedError(f"{attn.label}: a model swapped with phase='decode' does not support {problem}")
        self._prepare(attn, k, model_mask)
        self.state = attn.absorb(k, v, self.state)
        self.length += k.shape[2]

    def _prepare(self, attn: Attention, k: Tensor, model_mask: ModelMask) -> None:
        """Check the mask of new positions, and make the state in the first pass."""
        self.pending = 0
        if not model_mask.mask.causal:
            raise UnsupportedError(f"{attn.label}: a state is causal, and this layer is not")
        starts = _find_starts(model_mask.mask, self.length + k.shape[2], attn.label)
        if starts is not None and self.keep is not None:
            raise UnsupportedError(f"{attn.label}: a cache that drops keys has no padding: give prompts of one length")
        if self.state is None:
            self.batch, self.starts = k.shape[0], starts
            if self.keep is None:
                self.state = attn.init_state(self.batch, self.max_len, k.dtype, k.device, starts=starts)
        elif not _are_equal(starts, self.starts):
            raise UnsupportedError(
                f"{attn.label}: the padding of a state's rows must be the same in every pass, and end in the first"
            )

    def copy_rows(self, rows: Sequence[int], batch: int) -> StateLayer:
        """A copy with these rows of the batch."""
        duplicate = copy(self)
        duplicate.pending, duplicate.state = 0, select_state_rows(self.state, batch, rows)
        duplicate.batch, duplicate.starts = len(rows), None if self.starts is None else self.starts[list(rows)]
        return duplicate

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        require_received(self)
        return self.length

    def get_max_length(self) -> int:
        return self.max_len

    def reset(self) -> None:
        self.length, self.state, self.pending, self.starts = 0, None, 0, None

    def crop(self, tokens_to_remove: int) -> None:
        raise UnsupportedError("StateCache cannot forget tokens, as assisted decoding and prompt lookup have to")

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Select the rows of the beams that remain, which copies the state."""
        rows = beam_idx.tolist()
        self.state = select_state_rows(self.state, self.batch, rows)
        self.batch, self.starts = len(rows), None if self.starts is None else self.starts[rows]


class StateCache(Cache):
    """A cache of states, one for each layer with a mechanism. max_len: its capacity; by default the model's number of
    positions. keep: the rule by which layers with exact attention drop keys (`H2O`, `Tova`, `SnapKV` of `evictions`).

    A model that is swapped with ``phase="decode"`` reads a prompt, in one pass, with its own attention, and continues
    from states. Raises `UsageError` for a model that does not define its positions if ``max_len`` is not given, one
    without mechanisms, and one that is swapped with ``phase="prefill"``, whose steps need all keys; `UnsupportedError`
    for one with an encoder.
    """

    def __init__(self, model: Any, max_len: int | None = None, *, keep: Eviction | None = None) -> None:
        if model.config.is_encoder_decoder:
            problem = "has an encoder and a decoder, and states are for decoders alone; use transformers' own cache"
            raise UnsupportedError(f"StateCache: {type(model).__name__} {problem}")
        config = model.config.get_text_config(decoder=True)
        longest = max_len or getattr(config, "max_position_embeddings", None)
        if not longest:
            name = type(model).__name__
            raise UsageError(f"StateCache: {name} does not define its number of positions; give max_len")
        attention, numbers = str(config._attn_implementation), set(range(config.num_hidden_layers))
        if not attention.startswith(PREFIX):
            raise UsageError(f"StateCache: the model runs {attention!r}; call ea.swap(model, ...) first")
        if attention.startswith(SWAPPED):
            if attention.startswith(f"{SWAPPED}prefill-"):
                raise UsageError("StateCache: the model is swapped with phase='prefill', and its steps need all keys")
            numbers = {getattr(m, "layer_idx", None) for m in model.modules() if SUBMODULE in m._modules}
        key, layers = object(), list[Any](DynamicCache(config=config).layers)
        for n, own_layer in enumerate(layers):
            if n in numbers and not isinstance(own_layer, LinearAttentionCacheLayerMixin):  # as those of Mamba
                layers[n] = StateLayer(longest, key, keep)
        super().__init__(layers=layers)

    def copy_rows(self, rows: Sequence[int], *, batch: int = 1) -> StateCache:
        """An independent copy with these rows of a batch, which may be repeated."""
        duplicate = copy(self)
        duplicate.layers = [_copy_layer(layer, rows, batch) for layer in self.layers]
        return duplicate

    @property
    def states(self) -> list[Any]:
        """Every layer's state, or what the model's own layer holds; ``ea.state_bytes`` counts their bytes. Raises
        `UnsupportedError` if new keys of a layer have reached no mechanism."""
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                require_received(layer)
        return [layer.state if isinstance(layer, StateLayer) else vars(layer) for layer in self.layers]


def _find_starts(mask: Mask, length: int, label: str) -> Tensor | None:
    """The first position of each row, ``[B]``; None without padding."""
    valid = mask.key_valid(length)
    if valid is None or valid.all():
        return None
    starts = length - valid.sum(1)
    if not torch.equal(valid, torch.arange(length, device=valid.device) >= starts[:, None]):
        raise UnsupportedError(
            f"{label}: a state has padding on the left only; pad prompts there, or give one at a time"
        )
    return starts


def _are_equal(starts: Tensor | None, others: Tensor | None) -> bool:
    return starts is others if starts is None or others is None else torch.equal(starts, others)


def _copy_layer(layer: Any, rows: Sequence[int], batch: int) -> Any:
    if isinstance(layer, StateLayer):
        return layer.copy_rows(rows, batch)
    duplicate = deepcopy(layer)
    duplicate.reorder_cache(torch.tensor(rows, dtype=torch.int64))
    return duplicate


def take_waiting() -> StateLayer | None:
    """The layer of a `StateCache` that has received new keys and whose attention is due, once; None without any."""
    layer, _waiting.layer = getattr(_waiting, "layer", None), None
    return layer


def continues_state() -> bool:
    """Whether the keys that wait for attention continue those of earlier passes."""
    layer = getattr(_waiting, "layer", None)
    return layer is not None and layer.length > 0


def require_received(layer: StateLayer) -> None:
    """Raise `UnsupportedError` if new keys of a layer have not reached its mechanism."""
    if layer.pending:
        count, layer.pending = layer.pending, 0
        raise UnsupportedError(
            f"StateCache: {count} new positions reached no mechanism: this model's attention does not go through "
            "transformers' AttentionInterface; use transformers' own cache"
        )
