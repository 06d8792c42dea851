"""The transformer block: attention and a feed-forward part, each added to its input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..contract import Mask
from ..contract.row_starts import RowStarts, make_row_starts
from ..layers.multi_head import MultiHeadAttention
from ..layers.weights import draw_uniform, make_projection
from .config import Config, require

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, applied to each position."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__()
        hidden = config.hidden or 4 * config.d_model
        self.inner = make_projection(config.d_model, hidden, bias=True, seed=seed, name="inner")
        self.outer = make_projection(hidden, config.d_model, bias=True, seed=seed, name="outer")
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """``[B, length, d_model]`` to the same shape, position by position."""
        return self.outer(self.activation(self.inner(x)))


class ShortConvolution(nn.Module):
    """A depthwise causal convolution over a few positions, added to its input. Initialized uniformly like torch's,
    because with zeros training uses earlier positions only late."""

    def __init__(self, width: int, d_model: int, *, seed: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_model, 1, width))
        draw_uniform(self, width**-0.5, seed=seed, name="short convolution")

    @property
    def reach(self) -> int:
        """The number of earlier positions that it reads."""
        return self.weight.shape[2] - 1

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """past: the inputs before x, ``[B, reach, d_model]``; None at the start of the sequence."""
        window = F.pad(x, (0, 0, self.reach, 0)) if past is None else torch.cat([past, x], 1)
        for i, tap in enumerate(self.weight[:, 0].unbind(1)):  # conv1d would copy x to channels first and back
            x = torch.addcmul(x, window[:, i : i + x.shape[1]], tap)
        return x


@dataclass(frozen=True)
class BlockState:
    """The state of one block: its mechanism's, the inputs that its convolution still reads, and the rows' starts."""

    attention: Any
    past: Tensor | None = None
    starts: RowStarts | None = None
    length: int = 0


class Block(nn.Module):
    """Self-attention, with ``cross`` also attention to a context, and a feed-forward part."""

    def __init__(
        self, config: Config, spec: str, seed: int, *, model: str, causal: bool, cross: str | None = None
    ) -> None:
        super().__init__()
        self.norm_first, self.checkpointed = config.norm == "pre", config.checkpointed
        sizes = {"kv_heads": config.kv_heads, "max_len": config.max_len, "seed": seed}
        d, heads = config.d_model, config.heads
        self.attention = MultiHeadAttention(d, heads, variant=spec, positions=config.placing, **sizes)  # pyright: ignore
        require(model, self.attention.attn, "causal" if causal else "bidirectional")
        self.cross = MultiHeadAttention(d, heads, variant=cross, **{**sizes, "seed": seed + 1}) if cross else None  # pyright: ignore
        if self.cross is not None:
            require(model, self.cross.attn, "cross", "bidirectional")
        self.feed_forward = FeedForward(config, seed)
        self.convolution = ShortConvolution(config.convolution, d, seed=seed) if config.convolution else None
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3 if cross else 2))
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        context: Tensor | None = None,
        context_mask: Mask | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """x ``[B, N, d_model]`` after the block. context: for cross attention. rows: indices ``[T]`` of those of the
        ``B N`` rows that are needed, which are returned as ``[T, d_model]``; attention still has all queries."""
        if self.checkpointed and torch.is_grad_enabled():
            return checkpoint(self._mix, x, mask, context, context_mask, rows, use_reentrant=False)
        return self._mix(x, mask, context, context_mask, rows)

    def _mix(
        self, x: Tensor, mask: Mask, context: Tensor | None, context_mask: Mask | None, rows: Tensor | None
    ) -> Tensor:
        x = self._add_residual(0, x, lambda y: self.attention(self._convolve(y), mask=mask))
        return self._finish(x, context, context_mask, rows)

    def init_state(self, batch: int, max_len: int, starts: Tensor | None = None) -> BlockState:
        """An empty state. starts: ``[B]``, the first position of each row, as in `Attention.init_state`."""
        convolution, attention_state = self.convolution, self.attention.init_state(batch, max_len, starts=starts)
        if convolution is None:
            return BlockState(attention_state)
        past = convolution.weight.new_zeros(batch, convolution.reach, convolution.weight.shape[0])
        row_starts = None if starts is None else make_row_starts(starts, batch, max_len, past.device)
        return BlockState(attention_state, past, row_starts)

    def step(
        self, x: Tensor, state: BlockState, context: Tensor | None = None, context_mask: Mask | None = None
    ) -> tuple[Tensor, BlockState]:
        """The rows of new positions ``[B, T, d_model]`` after the block, and the state after them."""
        states: list[BlockState] = []

        def attend(y: Tensor) -> Tensor:
            past, row_starts = state.past, state.starts
            valid = None if row_starts is None else row_starts.valid_or_none(state.length, y.shape[1])
            if valid is not None:  # otherwise a convolution would read padding
                y = y.masked_fill(~valid[..., None], 0)
            out, attention_state = self.attention.step(self._convolve(y, past), state.attention)
            if past is not None:
                sequence = torch.cat([past, y], 1)
                # a view would keep the whole tensor alive
                past = sequence[:, sequence.shape[1] - past.shape[1] :].clone()
            states.append(BlockState(attention_state, past, row_starts, state.length + y.shape[1]))
            return out

        x = self._add_residual(0, x, attend)
        return self._finish(x, context, context_mask), states[0]

    def _finish(
        self, x: Tensor, context: Tensor | None, context_mask: Mask | None, rows: Tensor | None = None
    ) -> Tensor:
        cross = self.cross
        if cross is not None:
            x = self._add_residual(1, x, lambda y: cross(y, context, context_mask))
        if rows is not None:
            x = x.flatten(0, 1).index_select(0, rows)
        return self._add_residual(-1, x, self.feed_forward)

    def _convolve(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        return x if self.convolution is None else self.convolution(x, past)

    def _add_residual(self, index: int, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum of x and the result of a part, with a norm before the part or after the sum."""
        norm = self.norms[index]
        if self.norm_first:
            return x + self.dropout(part(norm(x)))
        return norm(x + self.dropout(part(x)))
