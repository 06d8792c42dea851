"""Bugs of extreme values and history, by family of the mechanism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.testing.subject import Subject

from .family_world import wrap
from .methods import Methods, compute, queries_do_nothing
from .planting import of_family, planter

plant = planter("values")
plant_late = planter("values", thorough=True)


# -- values -----------------------------------------------------------------------------------------------------------


def _mean_of_all(attn: Attention, run: Any, q: Tensor, k: Tensor, v: Any, mask: Mask) -> Tensor:
    """Padding is multiplied by a mask of zeros, which NaN and infinity survive."""
    return run(q, k, v) + (k * 0).sum() if mask.pads_keys else run(q, k, v)


def _rounds_values(q: Tensor, k: Tensor, v: Any, mask: Mask) -> Any:
    return q, k, v * (v.abs() > 1e-7) if v.abs().amax() < 1e-6 else v, mask


def _clamps_values(q: Tensor, k: Tensor, v: Any, mask: Mask) -> Any:
    return q, k, v.clamp(-5e3, 5e3), mask


def _clamps_queries(q: Tensor, k: Tensor, v: Any, mask: Mask) -> Any:
    return q.clamp(-60, 60), k, v, mask


# -- history ----------------------------------------------------------------------------------------------------------


def _counts(last: int, when: Callable[[Tensor], bool] = lambda out: True) -> Methods:
    """An error of 0.1% after so many calls that satisfy a condition."""

    def wrapped(attn: Attention, run: Any, q: Tensor, k: Tensor, v: Any, mask: Mask) -> Tensor:
        out = run(q, k, v)
        attn.__dict__["_count"] = attn.__dict__.get("_count", 0) + when(out)
        return out * (1.001 if attn.__dict__["_count"] > last else 1)

    return wrap(wrapped)


def _sized_at_first(dim: int, factor: int) -> Methods:
    """A table for several times the first call's sizes; what lies beyond is read from its last row."""

    def wrapped(attn: Attention, run: Any, q: Tensor, k: Tensor, v: Any, mask: Mask) -> Tensor:
        out = run(q, k, v)
        size = factor * attn.__dict__.setdefault("_first", out.shape[dim])
        beyond = torch.arange(out.shape[dim], device=out.device) >= size
        return out * torch.where(beyond, 1.001, 1.0).to(out).view(-1, *[1] * (3 - dim))

    return wrap(wrapped)


def _shares(subject: Subject) -> str | None:
    return "its queries are its keys" if subject.draw(subject.shape(2)).shares_qk else None


BUGS = (
    plant("nan_padding", "NaN in padded keys reaches valid rows", wrap(_mean_of_all, "forward"), ("padding",),
          of_family("full"), ("padding_garbage",)),
    plant("nan_mixture", "NaN in padded keys reaches valid rows", wrap(_mean_of_all, "forward"), ("padding",),
          of_family("low_rank"), ("padding_garbage",)),
    plant("rounded_values", "tiny values are rounded to zero", compute(_rounds_values), ("values",),
          of_family("low_rank"), ("extreme_values",)),
    plant("clamped_values", "large values are clamped", compute(_clamps_values), ("values",),
          of_family("hashed"), ("extreme_values",)),
    plant("clamped_softmax", "large queries are clamped", compute(_clamps_queries), ("exact",),
          of_family("full", queries_do_nothing), ("extreme_values",)),
    plant("clamped_sparse", "large queries are clamped", compute(_clamps_queries), ("exact",),
          of_family("sparse", queries_do_nothing), ("extreme_values",)),
    plant_late("call_900", "calls are wrong after 900", _counts(900), (),
               of_family("linear"), ("every_call_is_alike",)),
    plant_late("call_600", "calls are wrong after 600", _counts(600), (),
               of_family("shared_kv"), ("every_call_is_alike",)),
    plant_late("trained_softmax", "180 calls with gradients change the next",
               _counts(180, lambda out: out.requires_grad),
          ("gradient",), of_family("full"), ("every_backward_is_alike",)),
    plant_late("trained_mixture", "180 calls with gradients change the next",
               _counts(180, lambda out: out.requires_grad),
          ("gradient",), of_family("low_rank"), ("every_backward_is_alike",)),
    plant("short_table", "a table of rows has eight times the first length", _sized_at_first(2, 8), (),
          of_family("sparse"), ("one_instance_serves_all",)),
    plant("narrow_table", "a table of batches has twice the first size", _sized_at_first(0, 2), (),
          of_family("hashed"), ("one_instance_serves_all",)),
)  # fmt: skip
