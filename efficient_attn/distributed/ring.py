"""Exact attention of a sequence that is spread over ranks: keys and values travel around a ring.

    for each block s of keys:   out_s, lse_s = the softmax over block s alone
    lse = log sum_s exp lse_s,  out = sum_s exp(lse_s - lse) out_s

(Ring attention, Liu et al. 2023, arXiv:2310.01889.) A rank's queries stay. In each of W steps it attends to one block
of keys, while the block is on its way to the next rank, so that no rank ever holds more than two of them. The fused
kernels' log-sum-exp has no gradient. The backward pass here sends keys and values around once more, with the sums of
their gradients behind them; a part's gradients are exact given the output and the log-sum-exp of the whole.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..contract import Shape
from ..errors import UsageError
from ..kernels.dense import widen
from ..kernels.derivatives import KernelFunction, differentiate_once
from ..kernels.softmax.fused import additive_mask, attend_with_lse, gradients_with_lse
from ..kernels.softmax.merge import FusedInputs, FusedOptions, join
from ..kernels.softmax.softmax_kernel import SavedSoftmax
from .collectives import Ranks, Transfer, get_ranks, start_shift
from .sequence_parts import Order, count_chunks

KERNEL = "ring attention"
EVERY = slice(None)


@dataclass(frozen=True)
class RingConfig:
    """The arguments of a call besides its tensors."""

    ranks: Ranks
    causal: bool
    order: Order
    scale: float


class KeyBlock(NamedTuple):
    """Keys ``[B Hkv, 1, M, D]``, values ``[.., E]``, and which keys are valid, bool ``[B, M]``, of one rank."""

    k: Tensor
    v: Tensor
    valid: Tensor | None

    def find_valid(self, keys: slice) -> Tensor | None:
        """``[B Hkv, 1, keys]``, the valid ones of some keys; None if all are."""
        if self.valid is None:
            return None
        return self.valid[:, None, keys].repeat_interleave(len(self.k) // len(self.valid), 0)

    def start_shift(self, ranks: Ranks) -> Transfer:
        """Pass the block on, and receive the previous rank's."""
        return start_shift([x for x in self if x is not None], ranks)


class Visible(NamedTuple):
    """Which of a rank's queries see which keys of a block; causal: query i sees keys up to i of these."""

    rows: slice
    keys: slice
    causal: bool


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    valid: Tensor | None = None,
    order: Order = "contiguous",
    scale: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """softmax(scale q k^T) v over the keys of all ranks (`ring`). q ``[B, H, N, D]``, k ``[B, Hkv, M, D]``, v ``[B,
    Hkv, M, E]``: this rank's parts, of the same shapes on all ranks; returns the rows of q, ``[B, H, N, E]``.

    valid: bool ``[B, M]``, False for this rank's padded keys; on all ranks or on none. order: of the positions over
    ranks, see `sequence_parts`. scale: 1/sqrt(D) unless given. A query that sees no key gives zeros. Raises
    `UsageError` for shapes that do not fit.
    """
    shape, ranks = Shape.of(q, k, v), get_ranks(group)
    if causal and shape.n != shape.m:
        raise UsageError(f"a causal ring needs as many queries as keys on each rank, got {shape.n} and {shape.m}")
    if causal:
        count_chunks(shape.n, order)
    if valid is not None and valid.shape != (shape.batch, shape.m):
        raise UsageError(f"valid must have shape {[shape.batch, shape.m]}, got {list(valid.shape)}")
    config = RingConfig(ranks, causal, order, shape.head_dim**-0.5 if scale is None else scale)
    rows = q.unflatten(1, (shape.kv_heads, -1)).flatten(0, 1)
    keys, values = (x.flatten(0, 1)[:, None] for x in (k, v))
    out, _ = cast(tuple[Tensor, Tensor], _RingFunction.apply(config, rows, keys, values, valid))
    return out.view(*q.shape[:3], shape.value_dim)


def find_visible(config: RingConfig, source: int, length: int) -> Visible | None:
    """What this rank's queries see of the block of rank ``source``, of ``length`` keys; None for nothing."""
    rank, half = config.ranks.rank, length // 2
    if not config.causal or source == rank:
        return Visible(EVERY, EVERY, config.causal)
    if config.order == "contiguous":
        return Visible(EVERY, EVERY, False) if source < rank else None
    # of an earlier rank only its first chunk is in the past of both of ours; a later rank's are in that of our second
    return Visible(EVERY, slice(half), False) if source < rank else Visible(slice(half, None), EVERY, False)


def _forward(config: RingConfig, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Outputs ``[B Hkv, G, N, E]`` and log-sum-exps, minus infinity in rows without keys."""
    ranks, block = config.ranks, KeyBlock(k, v, valid)
    out = widen(q).new_zeros(*q.shape[:3], v.shape[3])
    lse = out.new_full(q.shape[:3], float("-inf"))
    for step in range(ranks.size):
        transfer = block.start_shift(ranks) if step < ranks.size - 1 else None
        visible = find_visible(config, (ranks.rank - step) % ranks.size, k.shape[2])
        if visible is not None:
            part, part_lse = _attend_block(config, q, block, visible)
            join(out[:, :, visible.rows], lse[:, :, visible.rows], part, part_lse)
        if transfer is not None:
            block = _receive(transfer)
    return out.to(q.dtype), lse


def _attend_block(config: RingConfig, q: Tensor, block: KeyBlock, visible: Visible) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exps of the queries that see a block, over its keys alone."""
    inputs = _select_inputs(q, block, visible)
    out, lse = attend_with_lse(inputs, FusedOptions(visible.causal, config.scale))
    out = out[..., : block.v.shape[3]]
    valid = block.find_valid(visible.keys)
    if valid is None:
        return out, lse
    # the kernel's log-sum-exp of a row without keys is not defined
    blind = ~(valid.cumsum(-1) > 0 if visible.causal else valid.any(-1, keepdim=True))
    return out.masked_fill(blind[..., None], 0), lse.masked_fill(blind, float("-inf"))


def _select_inputs(q: Tensor, block: KeyBlock, visible: Visible) -> FusedInputs:
    """The kernel's inputs, of one width, which it requires."""
    q, k, v = q[:, :, visible.rows], block.k[:, :, visible.keys], block.v[:, :, visible.keys]
    width = max(k.shape[3], v.shape[3])
    valid = block.find_valid(visible.keys)
    mask = None if valid is None else additive_mask(valid[:, None], q.dtype)
    return FusedInputs(_pad_width(q, width), _pad_width(k, width), _pad_width(v, width), mask)


def _pad_width(x: Tensor, width: int) -> Tensor:
    x = F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x
    return x if x.stride(-1) == 1 else x.contiguous()


def _receive(transfer: Transfer) -> KeyBlock:
    k, v, *valid = transfer.wait()
    return KeyBlock(k, v, valid[0] if valid else None)


def _gradients(config: RingConfig, grad: Tensor, *saved: Any) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_RingFunction`."""
    q, k, v, valid, out, lse = saved
    ranks, block = config.ranks, KeyBlock(k, v, valid)
    lse = lse.masked_fill(lse == float("-inf"), 0)  # of rows without keys, whose weights are then exp(-inf)
    grad_q = torch.zeros_like(widen(q), memory_format=torch.contiguous_format)
    home: list[Tensor] = []  # the gradients of this rank's keys and values by its queries
    sums: Transfer | None = None  # the gradients that follow a block
    for step in range(ranks.size):
        transfer = block.start_shift(ranks) if step < ranks.size - 1 else None
        totals = [torch.zeros_like(widen(x), memory_format=torch.contiguous_format) for x in (block.k, block.v)]
        visible = find_visible(config, (ranks.rank - step) % ranks.size, k.shape[2])
        if visible is not None:
            saved_rows = [x[:, :, visible.rows] for x in (grad, out, lse)]
            part, *part_grads = _differentiate_block(config, q, block, visible, *saved_rows)
            grad_q[:, :, visible.rows] += part
            for total, part_grad in zip(totals, part_grads, strict=True):
                total[:, :, visible.keys] += part_grad
        if step == 0:
            home = totals
        else:  # the block has come from its own rank, with the sums of all ranks in between
            totals = [x + y for x, y in zip(totals, sums.wait(), strict=True)] if sums else totals
            sums = start_shift(totals, ranks)
        if transfer is not None:
            block = _receive(transfer)
    if sums is not None:
        home = [x + y for x, y in zip(home, sums.wait(), strict=True)]
    return None, grad_q.to(q.dtype), home[0].to(k.dtype), home[1].to(v.dtype), None


def _differentiate_block(
    config: RingConfig, q: Tensor, block: KeyBlock, visible: Visible, grad: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of the queries that see a block and of the keys and values that they see. grad, out, lse: of these
    queries, over the keys of all blocks."""
    inputs = _select_inputs(q, block, visible)
    width, value_width = block.k.shape[3], block.v.shape[3]
    grad, out = (_pad_width(x, inputs.v.shape[3]) for x in (grad, out))
    options = FusedOptions(visible.causal, config.scale)
    grad_q, grad_k, grad_v = gradients_with_lse(grad, SavedSoftmax(inputs, out, lse), options)
    return grad_q[..., :width], grad_k[..., :width], grad_v[..., :value_width]


class _RingFunction(KernelFunction):
    """``(config, q, k, v, valid)``: outputs and log-sum-exps, which have no gradient."""

    @staticmethod
    def forward(config: RingConfig, *arguments: Any) -> tuple[Tensor, Tensor]:
        return _forward(config, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.config, *tensors = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return differentiate_once(KERNEL, partial(_gradients, ctx.config), grads[0], *ctx.saved_tensors)
