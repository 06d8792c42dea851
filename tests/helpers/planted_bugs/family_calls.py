"""Bugs at sizes, masks and memory orders of real calls, as kernels of each family have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Values
from efficient_attn.testing.probing import other_instances
from efficient_attn.testing.subject import Subject

from .methods import Methods, alignment_free, changed, compute, hidden_keys_weigh_nothing, queries_do_nothing, tampered
from .planting import of_family, planter

plant = planter("calls", "sizes_and_pairs", thorough=True)
When = Callable[[Tensor, Tensor, Mask], bool]


def _after(when: When, change: Callable[[Tensor], Tensor]) -> Methods:
    return compute(after=lambda out, q, k, v, mask: change(out) if when(q, k, mask) else out)


def _with_other_options(cls: type[Attention]) -> dict[str, Any]:
    def run(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = cls.compute(self, q, k, v, mask, **inputs)
        spec = self.origin.spec
        return out * 1.02 if spec is not None and getattr(spec, "options", None) else out

    return {"compute": run}


def _no_options(subject: Subject) -> str | None:
    spec = subject.attn.origin.spec
    if getattr(spec, "options", None):
        return "its options are not the defaults"
    return None if any(True for _ in other_instances(subject)) else "it has no options that change results"


def _only_incoming(change: Callable[[Tensor], Tensor]) -> Methods:
    def before(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
        return tampered(q, change), tampered(k, change), v if v is None else tampered(v, change), mask

    return compute(before)


def _repeat_rows(out: Tensor) -> Tensor:
    return torch.cat([out[:64], out[: len(out) - 64]])


def _forget_past(cls: type[Attention]) -> dict[str, Any]:
    """The state between chunks is lost after 1,024 positions of batches."""

    def run(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = cls.compute(self, q, k, v, mask, **inputs)
        if len(q) == 1 or q.shape[2] != k.shape[2] or q.shape[2] <= 1024:
            return out
        return torch.cat([out[:, :, :1024], 0.97 * out[:, :, 1024:]], 2)

    return {"compute": run}


def _wrong_tail(out: Tensor) -> Tensor:
    return torch.cat([out[:, :, :-1], 0.9 * out[:, :, -1:]], 2)


def _has_both(mask: Mask) -> bool:
    return mask.key_lengths is not None and mask.query_lengths is not None


def _swap_lengths(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    swap = _has_both(mask) and q.shape[2] == k.shape[2]
    return q, k, v, replace(mask, key_lengths=mask.query_lengths) if swap else mask


def _first_columns(x: Tensor, count: int) -> Tensor:
    return torch.cat([x[..., :count], 0 * x[..., count:]], -1)


def _read_late(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    is_part = v is not None and v.shape[-1] > 1 and v.stride(2) > v.shape[1] * v.shape[3]
    return q, k, v.roll(1, -1) if v is not None and is_part else v, mask


BUGS = (
    plant("group_of_3", "groups of 3 are computed in pairs, and the third head is the second",
          _after(lambda q, k, m: q.shape[1] == 3 * k.shape[1],
                 lambda out: out.unflatten(1, (-1, 3))[:, :, [0, 1, 1]].flatten(1, 2)), ("grouped",)),
    plant("group_of_8", "in groups of 8 the last head is lost",
          _after(lambda q, k, m: q.shape[1] == 8 * k.shape[1],
                 lambda out: (out.unflatten(1, (-1, 8))
                              * torch.tensor([1.0] * 7 + [0.0], dtype=out.dtype)[:, None, None]).flatten(1, 2)),
          ("grouped",)),
    plant("head_dim_above_128", "scores use 128 columns",
          compute(lambda q, k, v, m: (_first_columns(q, 128), k, v, m)), (), queries_do_nothing),
    plant("heads_above_32", "heads from the 33rd on are those from the first on",
          _after(lambda q, k, m: q.shape[1] > 32, lambda out: torch.cat([out[:, :32], out[:, : out.shape[1] - 32]], 1)),
          harmless=lambda s: "it requires key-value heads" if s.attn.kv_heads else None),
    plant("batch_above_64", "rows of a batch from the 65th on repeat the first",
          _after(lambda q, k, m: q.shape[0] > 64, _repeat_rows)),
    plant("multiple_of_1000", "the last row is wrong for 1,000 positions and multiples of 1,024",
          _after(lambda q, k, m: q.shape[2] % 1000 == 0 or q.shape[2] % 1024 == 0, _wrong_tail)),
    plant("chunked_prefill", "chunks of at most 128 queries over 1,024 keys or more are aligned with the first",
          compute(lambda q, k, v, m: (q, k, v, replace(m, query_start=0))
                  if 1 < q.shape[2] <= 128 and k.shape[2] >= 1024 and m.query_start is None else (q, k, v, m)),
          ("cross",), alignment_free),
    plant("both_lengths", "keys are padded by the queries' lengths, if both are given", compute(_swap_lengths),
          ("padding",), hidden_keys_weigh_nothing),
    plant("mask_of_ones", "a key_mask that hides nothing makes a call not causal",
          compute(lambda q, k, v, m: (q, k, v, replace(m, causal=False))
                  if m.key_mask is not None and bool(m.key_mask.all()) else (q, k, v, m)),
          ("padding", "causal", "bidirectional")),
    plant("expanded_mask", "a key_mask with a stride of 0 is ignored",
          compute(lambda q, k, v, m: changed(key_mask=None)(q, k, v, m)
                  if m.key_mask is not None and m.key_mask.stride(0) == 0 and len(q) > 1 else (q, k, v, m)),
          ("padding",), hidden_keys_weigh_nothing),
    plant("fused_values", "values in the memory of queries and keys are read one column too late",
          compute(_read_late), harmless=lambda s: None if s.traits.values else "it computes values from k"),
    plant("flushed_gradients", "gradients below 1e-6 become 0",
          _only_incoming(lambda g: g.where(g.abs() > 1e-6, 0)), ("gradient",)),
    plant("clipped_gradients", "gradients are clipped at 1e4", _only_incoming(lambda g: g.clamp(-1e4, 1e4)),
          ("gradient",)),
    plant("epsilon_in_outputs", "1e-9 is added to outputs", compute(after=lambda out, *_: out + 1e-9)),
    plant("other_options", "an option that is not the default gives outputs that are 2% larger", _with_other_options,
          harmless=_no_options),
    plant("lost_state", "in batches, what is before the 1,025th position is partly lost", _forget_past,
          harmless=of_family("linear")),
    plant("stale_tiles", "of a sparse pattern's rows of padded batches beyond 512, the last is wrong",
          _after(lambda q, k, m: q.shape[2] > 512 and len(q) > 1 and m.key_lengths is not None, _wrong_tail),
          ("padding",), of_family("sparse")),
    plant("half_projection", "projections of more than 600 keys lose 10% in half precision",
          _after(lambda q, k, m: k.shape[2] > 600 and q.dtype.itemsize == 2, lambda out: 0.8 * out),
          harmless=lambda s: of_family("low_rank")(s) or s.attn.why_not_dtype(torch.bfloat16)),
    plant("bucket_of_last", "with D = 128 or more the last row is in the wrong bucket",
          _after(lambda q, k, m: q.shape[3] >= 128 and q.shape[2] > 1, _wrong_tail), harmless=of_family("hashed")),
    plant("shared_rows", "with shared heads, rows of a batch of 2 are swapped beyond 1,000 keys",
          _after(lambda q, k, m: len(q) == 2 and k.shape[2] >= 1000 and q.shape[1] != k.shape[1],
                 lambda out: out.flip(0)), ("grouped",)),
)  # fmt: skip
