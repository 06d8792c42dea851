"""Bugs that occur only with two or three conditions together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Values
from efficient_attn.testing.subject import Subject

from .methods import Methods, alignment_free, compute, hidden_keys_weigh_nothing, interleaved, no_bfloat16, one_kv_head
from .planting import planter

plant = planter("combinations", "sizes_and_pairs", thorough=True)
When = Callable[[Tensor, Tensor, Tensor, Mask], bool]


def _grouped(q: Tensor, k: Tensor) -> bool:
    return q.shape[1] != k.shape[1]


def _widths_differ(q: Tensor, v: Values) -> bool:
    return v is not None and v.shape[-1] != q.shape[-1]


def ignores(when: When, *fields: str) -> Methods:
    """Methods with a ``compute`` that ignores fields of the mask under a condition."""

    def before(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor, Mask]:
        return q, k, v, replace(mask, **dict.fromkeys(fields)) if when(q, k, v, mask) else mask

    return compute(before)


def _interleaved_in(dtype: torch.dtype) -> Methods:
    def methods(cls: type[Attention]) -> dict[str, Any]:
        interleaved_compute = interleaved(cls)["compute"]

        def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
            return (interleaved_compute if q.dtype == dtype else partial(cls.compute))(self, q, k, v, mask, **inputs)

        return {"compute": compute}

    return methods


def _no_values(subject: Subject) -> str | None:
    return None if subject.traits.values else "it computes values from k"


def _padding_has_no_effect(subject: Subject) -> str | None:
    return _no_values(subject) or hidden_keys_weigh_nothing(subject)


BUGS = (
    plant("grouped_start", "grouped heads ignore query_start",
          ignores(lambda q, k, v, m: _grouped(q, k), "query_start"), ("grouped", "cross"), alignment_free),
    plant("grouped_apart_padded", "grouped heads with E != D ignore padding",
          ignores(lambda q, k, v, m: _grouped(q, k) and _widths_differ(q, v), "key_lengths", "key_mask"),
          ("grouped", "padding"), _padding_has_no_effect),
    plant("float32_padding", "float32 ignores padding",
          ignores(lambda q, k, v, m: q.dtype == torch.float32, "key_lengths", "key_mask"),
          ("padding",), hidden_keys_weigh_nothing),
    plant("float32_start", "float32 ignores query_start",
          ignores(lambda q, k, v, m: q.dtype == torch.float32, "query_start"), ("cross",), alignment_free),
    plant("float32_groups", "grouped heads are assigned incorrectly in float32", _interleaved_in(torch.float32),
          ("grouped",), one_kv_head),
    plant("bfloat16_padding", "bfloat16 ignores holes",
          ignores(lambda q, k, v, m: q.dtype == torch.bfloat16, "key_mask"), ("padding",),
          lambda s: no_bfloat16(s) or hidden_keys_weigh_nothing(s)),
    plant("wide_values", "the last column is lost if E > D",
          compute(after=lambda out, q, *_: torch.cat([out[..., :-1], 0 * out[..., -1:]], -1)
                  if out.shape[-1] > q.shape[-1] else out)),
    plant("apart_start", "E != D ignores query_start",
          ignores(lambda q, k, v, m: _widths_differ(q, v), "query_start"), ("cross",),
          lambda s: _no_values(s) or alignment_free(s)),
)  # fmt: skip
