"""The masks of transformers' models as values instead of N x M tensors.

A model requests one mask for each forward pass, with a function of indices. transformers' usual functions are
recognized; others are evaluated for all pairs, and have to be causal, within a window, padded or packed, as `Mask` can
represent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from transformers import masking_utils

from ..contract.mask import Mask
from ..errors import UnsupportedError

if TYPE_CHECKING:
    from ..contract.mechanism import Attention

MAX_PAIRS = 1 << 22  # pairs evaluated together
SUMS = ("add", "__add__", "__radd__")  # torch's names of the sum of two tensors

MaskFunction = Callable[[Any, Any, Any, Any], Any]  # of batch index, head, query position and key position


@dataclass(frozen=True, eq=False)
class ModelMask:
    """The mask of a model's layers. window: keys that a query sees at most, including its own, if the model has one.

    shift: the position of the first key, if older ones were dropped. keys: their number, if the mask was made for it.
    is_supported: whether ``mask`` represents the model's. make_own: makes the mask for the model's own attention.
    visible: ``[B, keys]``, the keys that the only query of a pass with a static cache sees; a compiled graph that reads
    these instead of the query's position is valid for all of them. bias ``[1 or B, 1 or H, N, M]``: what a model adds
    to the mask, to be added to the scores.
    """

    mask: Mask
    window: int | None = None
    shift: int = 0
    keys: int | None = None
    is_supported: bool = True
    make_own: Callable[[], Any] | None = None
    visible: Tensor | None = None
    bias: Tensor | None = None

    def in_graph(self, attn: Attention) -> Mask:
        """The mask for a mechanism in a compiled graph."""
        traits = attn.traits
        if self.visible is None or traits.positional or not (traits.bidirectional and traits.padding):
            return self.mask
        return Mask(key_mask=self.visible)

    def check_supported(self) -> None:
        """Raise `UnsupportedError` for a mask that no `Mask` represents."""
        if not self.is_supported:
            raise UnsupportedError(
                "this model's mask is neither causal nor within a window nor of packed sequences (one row of the "
                "batch), which is all that efficient_attn mechanisms support; use the model's own attention"
            )

    def check_keys(self, count: int, layer: str) -> None:
        """Raise `UnsupportedError` if a layer's keys are not those that its mask was made for."""
        if self.keys not in (None, count):
            problem = f"{layer} attends over {count} keys, and its mask is for {self.keys}"
            raise UnsupportedError(f"{problem}: such a cache is not supported; use transformers' own")

    @property
    def ndim(self) -> int:
        """That of a mask tensor that transformers does not change. With a static cache, generation makes the mask
        before the forward pass and gives it to the model as if it were a tensor."""
        return 4

    def contiguous(self) -> ModelMask:
        """Itself."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Raises `UnsupportedError` for attributes of tensors, and `AttributeError` for others."""
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"ModelMask has no attribute {name!r}")
        _refuse_use()

    def __getitem__(self, index: Any) -> Any:
        _refuse_use()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """The sum of a bias and a mask is the mask with the bias; nothing else is computed with masks."""
        if getattr(func, "__name__", "") in SUMS and len(args) == 2 and not kwargs:
            (bias,) = (x for x in args if isinstance(x, Tensor))
            (mask,) = (x for x in args if isinstance(x, ModelMask))
            return replace(mask, bias=bias if mask.bias is None else mask.bias + bias)
        return _refuse_use()


def _refuse_use() -> NoReturn:
    """A model uses its mask as a tensor, for something else than adding a bias, as BEiT does."""
    raise UnsupportedError(
        "this model computes with its mask, so it computes attention itself, which no mechanism supports; use the "
        "model's own attention"
    )


def describe_mask(  # noqa: PLR0917  (the signature is transformers')
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | ModelMask | None = None,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> ModelMask:
    """The mask of a forward pass, with the arguments of transformers' mask functions. One that no `Mask` represents is
    refused by the layers that use it: Qwen2-MoE makes one that hides all keys, for layers that it does not have.

    A graph of ``torch.compile`` cannot depend on the contents of tensors: the mask has the kind that the arguments
    name, and the graph asserts that the function agrees with it along the diagonals where kinds differ."""
    if isinstance(attention_mask, ModelMask):
        return attention_mask  # made before the forward pass
    start = int(q_offset) - kv_offset
    is_causal = mask_function is masking_utils.causal_mask_function
    padding_fields: dict[str, Any] = _describe_padding(
        attention_mask, kv_length, kv_offset, reach=start + q_length if is_causal else kv_length
    )
    is_static = isinstance(q_offset, Tensor)  # its steps have masks of one form, for one compiled graph
    aligned = None if start == kv_length - q_length and not is_static else start
    if is_causal or mask_function is masking_utils.bidirectional_mask_function:
        mask = Mask(causal=is_causal, query_start=aligned, **padding_fields)
        visible = None
        if is_static and is_causal and q_length == 1:
            valid = mask.key_valid(kv_length)
            before = (torch.arange(kv_length, device=device) <= start).expand(batch_size, -1)
            visible = before.contiguous() if valid is None else before & valid
        return ModelMask(mask, None, kv_offset, kv_length, visible=visible)
    probe = _MaskProbe(mask_function, batch_size, q_length, kv_length, start, kv_offset, torch.device(device))
    if torch.compiler.is_compiling():
        causal = "allow_is_bidirectional_skip" not in options
        if options.get("use_vmap"):  # a function of the model's own
            return ModelMask(Mask(), is_supported=False)
        window = local_size if causal or local_size is None else 2 * local_size  # on both sides, it is a half
        probe.assert_in_graph(causal, window)
        return ModelMask(Mask(causal=causal, query_start=aligned, **padding_fields), window, kv_offset, kv_length)
    # the model's window also while it hides no key; on both sides, models name half of it, or all
    for window in (local_size, 2 * local_size, None) if local_size else (None,):
        for causal in (True, False):
            if probe.equals(lambda i, j, c=causal, w=window: is_visible(i, j, c, w)):
                mask = Mask(causal=causal, query_start=aligned, **padding_fields)
                return ModelMask(mask, window, kv_offset, kv_length)
    if not padding_fields and (ends := probe.find_sequences()) is not None:
        return ModelMask(Mask(causal=True, cu_seqlens=ends))
    return ModelMask(Mask(), is_supported=False)


def _describe_padding(attention_mask: Tensor | None, keys: int, first: int, *, reach: int) -> dict[str, Tensor]:
    """The fields of a `Mask` for padding ``[B, positions]``, 0 for padded ones; empty if no query sees padding.

    reach: the number of keys that queries may see; a static cache has more, which it has not written yet."""
    valid = masking_utils.prepare_padding_mask(attention_mask, keys, first)
    if valid is None:
        return {}
    valid = valid[:, first : first + keys].bool()
    if torch.compiler.is_compiling():
        return {"key_mask": valid}
    if valid[:, :reach].all():
        return {}
    lengths = valid.sum(1)
    within = torch.arange(keys, device=valid.device) < lengths[:, None]
    return {"key_lengths": lengths} if torch.equal(within, valid) else {"key_mask": valid.contiguous()}


def is_visible(i: Tensor, j: Tensor, causal: bool, window: int | None) -> Tensor:
    """Whether position i sees j: up to itself if causal, and nearer than the window on every side that it sees."""
    visible = (j <= i) if causal else torch.ones((), dtype=torch.bool, device=i.device)
    if window is None:
        return visible & (i >= i) & (j >= j)
    return visible & (j > i - window) if causal else visible & ((i - j).abs() <= window // 2)


@dataclass(frozen=True)
class _MaskProbe:
    """A mask function with the requested sizes."""

    allows: MaskFunction
    batch: int
    queries: int
    keys: int
    start: int
    shift: int
    device: torch.device

    def equals(self, expected: Callable[[Tensor, Tensor], Tensor]) -> bool:
        """Whether it equals another function of positions for every batch row. Evaluated in blocks of queries."""
        step = max(1, MAX_PAIRS // (self.batch * self.keys))
        b = torch.arange(self.batch, device=self.device)[:, None, None]
        j = (torch.arange(self.keys, device=self.device) + self.shift)[None, None]
        rows = torch.arange(self.queries, device=self.device) + self.start + self.shift
        blocks = (block[None, :, None] for block in rows.split(step))
        return all(bool((self._evaluate(b, i, j) == expected(i, j)).all()) for i in blocks)

    def _evaluate(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.as_tensor(self.allows(b, torch.zeros_like(b), i, j))

    def assert_in_graph(self, causal: bool, window: int | None) -> None:
        """Let the graph raise an error for a function that is not one of causality and a window."""
        nearest = (0, 1, -1, self.keys - 1)
        reach = None if window is None else window - 1 if causal else window // 2
        distances = nearest if reach is None else (*nearest, reach, reach + 1, -reach, -reach - 1)
        b = torch.arange(self.batch, device=self.device)[:, None]
        i = (torch.arange(self.queries, device=self.device) + self.start + self.shift)[None]
        agrees = torch.ones((), dtype=torch.bool, device=self.device)
        for distance in distances:
            exists = (i - distance >= self.shift) & (i - distance < self.shift + self.keys)
            j = (i - distance).clamp(self.shift, self.shift + self.keys - 1)
            differs = self._evaluate(b, i, j) ^ is_visible(i, j, causal, window)  # inductor cannot compare with ==
            agrees = agrees & ~(differs & exists).any()
        problem = "in a compiled model a mask is causal or within a window, without packed sequences; do not compile it"
        torch.ops.aten._assert_async.msg(agrees, f"efficient_attn: {problem}")

    def find_sequences(self) -> Tensor | None:
        """The boundaries of packed sequences, if each sees only itself, causally; else None."""
        if self.batch != 1 or self.queries != self.keys or self.start:
            return None
        positions = torch.arange(1, self.keys, device=self.device)
        zero = torch.zeros_like(positions)
        breaks = positions[~self._evaluate(zero, positions, positions - 1)]
        ends = torch.cat([breaks.new_zeros(1), breaks, breaks.new_full((1,), self.keys)])
        number = torch.bucketize(torch.arange(self.keys, device=self.device), ends[1:], right=True)
        return ends if self.equals(lambda i, j: (j <= i) & (number[i] == number[j])) else None
