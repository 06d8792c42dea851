"""Sparse attention of the packages local-attention and transformers (Longformer and BigBird)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .. import patterns
from ..contract import Growth, Mask, Traits
from ..errors import UnsupportedError, UsageError, check_at_least_one
from ..kernels.dense import masked_softmax, widen
from ..registry import register
from .hosting import (
    SPARSE_GROWTH,
    LibraryAttention,
    LibraryPattern,
    check_value_width,
    fixed_outputs,
    import_library,
    make_layer,
)

BOTH_WAYS = Traits(exact=True, positional=True, cross=False, padding=False, decode=False, grouped=False)
ENCODER = replace(BOTH_WAYS, causal=False, strictly_causal=False)


@register("peer_local_attention", family="sparse")
class PeerLocalAttention(LibraryPattern):
    """The PyPI package local-attention: the same pairs as `sliding_window`, abs(i - j) <= window.

    ``LocalAttention(window, exact_windowsize=True)`` without positions. It cuts the sequence into blocks of ``window``,
    each of which sees its neighbors, with distant pairs masked: 3 blocks of keys for each query, 2 if causal.
    """

    declared = BOTH_WAYS

    def __init__(self, *, window: int = 256) -> None:
        super().__init__()
        check_at_least_one("peer_local_attention", window=window)
        attention_class = import_library("peer_local_attention", "local-attention", "local_attention").LocalAttention
        self.window, self.pattern = window, patterns.sliding_window(window)
        options = {"autopad": True, "exact_windowsize": True, "use_rotary_pos_emb": False}
        # in a dict, so that they are not registered as submodules
        self._attention = {causal: attention_class(window, causal=causal, **options) for causal in (False, True)}

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        batch, _, n, _ = q.shape
        # autopad appends keys of zero; it hides them only from a call that has a mask, and causality hides them anyway
        visible = None if mask.causal or n % self.window == 0 else q.new_ones(batch, n, dtype=torch.bool)
        return self._attention[mask.causal](q, k, v, mask=visible)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        if self.backend == "dense":
            return n * m
        blocks = -(-n // self.window)
        return blocks * self.window**2 * (2 if causal else 3)


@register("peer_longformer", family="sparse")
class PeerLongformer(LibraryPattern):
    """transformers' LongformerSelfAttention: the same pairs as `longformer`, a window and global tokens.

    Its projections are replaced by the given q, k and v, also those for global attention. As in its model, the sequence
    is padded to a multiple of 2 window and the padding masked. Its softmax is float32 for all inputs.
    """

    declared = ENCODER

    def __init__(self, *, window: int = 128, n_global: int = 64) -> None:
        super().__init__()
        if window < 1 or n_global < 0:
            raise UsageError(f"peer_longformer: needs window >= 1 and n_global >= 0, not {window} and {n_global}")
        model = import_library("peer_longformer", "transformers", "transformers.models.longformer.modeling_longformer")
        self._config_class, self._layer_class = model.LongformerConfig, model.LongformerSelfAttention
        self.window, self.n_global = window, n_global
        self.pattern = patterns.sliding_window(window) | patterns.global_tokens(n_global)
        self._layers: dict[tuple[int, int], nn.Module] = {}

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        batch, heads, n, width = q.shape
        check_value_width(self, q, v)
        if q.dtype == torch.float64:
            raise UnsupportedError(f"{self.label}: its softmax is float32 whatever the inputs, so float64 is refused")
        if padding := -n % (2 * self.window):
            q, k, v = (F.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        n_global = min(self.n_global, n)
        position = torch.arange(n + padding, device=q.device).expand(batch, -1)
        is_padding, is_global = position >= n, position < n_global
        # views [N, B, H, D], as the layer's own view(N, B, H, D) returns them; it divides queries in place
        q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))
        projections = {"query": q.clone(), "key": k, "value": v}
        if n_global:
            projections |= {"query_global": q[:n_global].clone(), "key_global": k, "value_global": v}
        hidden = q.new_zeros(()).expand(batch, n + padding, heads * width)  # only its size is used
        layer = self._get_layer(heads, width)
        with fixed_outputs(layer, **projections):
            # local tokens are 0 in the mask, others are not; further arguments name the global ones
            (out,) = layer(hidden, (is_padding | is_global).to(q.dtype), is_padding, is_global, n_global > 0)
        return out[:, :n].unflatten(-1, (heads, width)).transpose(1, 2)

    def _get_layer(self, heads: int, width: int) -> nn.Module:
        if (heads, width) not in self._layers:
            sizes = {"hidden_size": heads * width, "num_attention_heads": heads}
            config = self._config_class(attention_window=[2 * self.window], **sizes)
            projections = "query", "key", "value", "query_global", "key_global", "value_global"
            self._layers[heads, width] = make_layer(partial(self._layer_class, config, layer_id=0), *projections)
        return self._layers[heads, width]

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        """Products of a query and a key: overlapping squares of 2 window, and both directions of the global tokens."""
        if self.backend == "dense":
            return n * m
        padded = -(-n // (2 * self.window)) * 2 * self.window
        squares = padded // self.window - 1
        return squares * (2 * self.window) ** 2 + 2 * min(self.n_global, n) * padded


@register("peer_bigbird", family="sparse")
class PeerBigBird(LibraryAttention):
    """transformers' BigBirdBlockSparseAttention: 3 blocks around, the first and last block, ``n_random`` random ones.

    The queries of the first and the last block see all keys. A head's random blocks are drawn by numpy from ``seed``,
    as in training; in evaluation the library draws none, and counts block 0 ``1 + n_random`` times. They come from the
    first 1024 positions at N = 1024, 3072 and 4096, elsewhere from the first ``5 + 2 n_random`` blocks. At N = 1024 the
    last block, which is global, may be drawn too: it then counts twice in the softmax, and in our reference, which uses
    the library's counts of blocks.

    Every call also writes the weights into an N x N matrix for each head, to return them: time and memory are O(N^2).
    With ``return_weights=False`` that matrix is on the meta device, where it costs nothing; everything else is the
    same. N must be a multiple of ``block_size`` and more than ``(5 + 2 n_random) block_size``, as for the library's
    model.
    """

    declared = replace(ENCODER, exact=False)  # for blocks that count twice at N = 1024

    def __init__(self, *, n_random: int = 3, block_size: int = 64, return_weights: bool = True) -> None:
        super().__init__()
        check_at_least_one("peer_bigbird", n_random=n_random, block_size=block_size)
        self.n_random, self.block_size, self.return_weights = n_random, block_size, return_weights
        model = import_library("peer_bigbird", "transformers", "transformers.models.big_bird.modeling_big_bird")
        config = model.BigBirdConfig(num_random_blocks=n_random, block_size=block_size)
        with torch.device("meta"):  # its projections are unused: nothing is allocated, and no random number is drawn
            layer = model.BigBirdBlockSparseAttention(config)
        # stored as functions, not as a submodule: eval() must not affect the layer, which draws only in training mode
        self._attend = layer.train().bigbird_block_sparse_attention
        self._make_masks = model.BigBirdModel.create_masks_for_block_sparse_attn

    @property
    def growth(self) -> Growth:
        if self.return_weights:
            width = 2 * (self.dims.head_dim or 64)  # numbers of a pair's products, beside one written weight
            cost = "O(N^2): it returns the weights"
            return Growth(cost, cost, lambda n, m, causal: self.pairs(n, m, causal) + n * m / width)
        return Growth(*SPARSE_GROWTH, self.pairs)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        blocks = self.block_counts(q.shape[1], q.shape[2]).to(q.device)
        counts = blocks.repeat_interleave(self.block_size, 1).repeat_interleave(self.block_size, 2)
        scores = widen(q) @ widen(k).mT * q.shape[-1] ** -0.5 + counts.log()
        return (masked_softmax(scores, counts > 0) @ widen(v)).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        batch, heads, n, width = q.shape
        b, r = self.block_size, self.n_random
        limit = (5 + 2 * r) * b
        if n % b or n <= limit:
            raise UnsupportedError(f"{self.label}: N must be a multiple of {b} and more than {limit}, not {n}")
        blocked, band, rows, keys = self._make_masks(q.new_ones(batch, n), b)
        masks, sizes = (band, rows, keys, blocked, blocked), (heads, r, width, b, b, batch, n, n)
        plan_options = {"plan_from_length": None, "plan_num_rand_blocks": None}  # as its forward method does
        with _preserve_numpy_state(), nullcontext() if self.return_weights else _MetaWeights():
            try:
                out, _ = self._attend(q, k, v, *masks, *sizes, seed=self.seed % 2**32, **plan_options)
            except ValueError as error:  # in plans of older versions, with many random blocks
                raise UnsupportedError(f"{self.label}: the library cannot draw its blocks at N={n}: {error}") from error
        return out.transpose(1, 2)

    @torch.no_grad()
    def block_counts(self, heads: int, n: int) -> Tensor:
        """``[H, N/b, N/b]``: how often the library counts the keys of a block for the queries of another. With equal
        scores and one-hot values that encode the block, an output row is the share of each block."""
        equal_scores, blocks = torch.zeros(1, heads, n, 1), torch.eye(n // self.block_size)
        one_hot_values = blocks.repeat_interleave(self.block_size, 0).expand(1, heads, -1, -1)
        share = self.compute(equal_scores, equal_scores, one_hot_values, Mask())[0, :, :: self.block_size]
        total = torch.full((len(blocks),), 5.0 + self.n_random)
        total[[1, -2]] = 4.0 + self.n_random  # the window of these blocks reaches a global one
        total[[0, -1]] = float(len(blocks))
        return (share * total[:, None]).round()

    def pairs(self, n: int, m: int, causal: bool) -> int:
        """Pairs with their multiplicity, which is 1 except for N = 1024 (see the class)."""
        blocks = n // self.block_size
        visible_blocks = 2 * blocks + 2 * (4 + self.n_random) + max(blocks - 4, 0) * (5 + self.n_random)
        return min(visible_blocks * self.block_size**2, n * m)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        return n * m if self.backend == "dense" else self.pairs(n, m, causal)


class _MetaWeights(TorchFunctionMode):
    """Creates the results of ``torch.zeros`` on the meta device. BigBird's function calls it only for the weights."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}) | ({"device": "meta"} if func is torch.zeros else {}))


@contextmanager
def _preserve_numpy_state() -> Iterator[None]:
    """Restore the state of numpy's global generator after this context, in which the library seeds it."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)
