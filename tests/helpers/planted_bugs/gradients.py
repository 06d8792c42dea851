"""Bugs of the backward pass only."""

from __future__ import annotations

from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.shapes import Values
from efficient_attn.testing.subject import Subject

from .methods import compute, queries_do_nothing, tampered
from .planting import planter

plant = planter("gradient", "some_gradients", "sizes_and_pairs", thorough=True)
Arguments = tuple[Tensor, Tensor, Values, Mask]


def _only_values(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Arguments:
    alone = v.requires_grad and not (q.requires_grad or k.requires_grad)
    return q, k, tampered(v, lambda g: 0 * g) if alone else v, mask


def _only_queries(q: Tensor, k: Tensor, v: Values, mask: Mask) -> Arguments:
    alone = q.requires_grad and not k.requires_grad
    return tampered(q, lambda g: 0.9 * g) if alone else q, k, v, mask


def _frozen_queries(q: Tensor, k: Tensor, v: Values, mask: Mask) -> Arguments:
    return q, k if q.requires_grad else tampered(k, lambda g: 0.9 * g), v, mask


def _long(q: Tensor, k: Tensor, v: Values, mask: Mask) -> Arguments:
    return q, tampered(k, lambda g: 1.01 * g) if k.shape[2] > 512 else k, v, mask


def _beyond_4096(q: Tensor, k: Tensor, v: Values, mask: Mask) -> Arguments:
    return tampered(q, lambda g: 1.01 * g) if q.shape[2] > 4096 else q, k, v, mask


def _wide(q: Tensor, k: Tensor, v: Values, mask: Mask) -> Arguments:
    return tampered(q, lambda g: g * (8 / g.shape[-1]) ** 0.5), k, v, mask


def _grouped(q: Tensor, k: Tensor, v: Values, mask: Mask) -> Arguments:
    return q, tampered(k, lambda g: g / 2) if q.shape[1] == 2 * k.shape[1] else k, v, mask


def _tied(subject: Subject) -> str | None:
    return "its queries are its keys" if subject.draw(subject.shape(4)).shares_qk else None


def _needs_all_rows(subject: Subject) -> str | None:
    rows_alone = subject.traits.rows_alone
    return None if rows_alone else "single rows cannot be computed, and its reference cannot compute all rows"


BUGS = (
    plant("only_values", "no gradient for v if only v requires one", compute(_only_values), ("gradient", "values")),
    plant("only_queries", "the gradient of q is 10% too small if k requires none", compute(_only_queries),
          ("gradient",), lambda s: _tied(s) or queries_do_nothing(s)),
    plant("frozen_queries", "the gradient of k is 10% too small if q requires none", compute(_frozen_queries),
          ("gradient",), lambda s: _tied(s) or queries_do_nothing(s)),
    plant("long_key_gradient", "over more than 512 keys their gradient has an error of 1%", compute(_long),
          ("gradient",), queries_do_nothing),
    plant("query_gradient_4096", "of more than 4,096 queries the gradient has an error of 1%", compute(_beyond_4096),
          ("gradient",), lambda s: _needs_all_rows(s) or queries_do_nothing(s), ("long_sequence",)),
    plant("gradient_of_8", "the query's gradient is scaled for width 8", compute(_wide), ("gradient",),
          queries_do_nothing),
    plant("pairs_of_heads", "two heads on one key-value head give half its gradient", compute(_grouped),
          ("gradient", "grouped"), queries_do_nothing),
)  # fmt: skip
