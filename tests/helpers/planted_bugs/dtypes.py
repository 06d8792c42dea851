"""Bugs in some dtypes only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Values
from efficient_attn.testing.checks.algebra import weights
from efficient_attn.testing.checks.precision import draw_overflowing
from efficient_attn.testing.subject import Subject

from .methods import compute, queries_do_nothing, tampered
from .planting import map_tensors, planter

plant = planter("dtypes", "sizes_and_pairs", "wide_sums", "scores_overflow", thorough=True)
MIN_EFFECTIVE_KEYS = 30  # of a row, for which the precision of its state is visible
MIN_EFFECTIVE_PARTS = 8  # of a row, for which the precision of their sum is visible
HALVES = (torch.bfloat16, torch.float16)
PARTS = 64  # terms of a sum


def _key_gradient(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    return q, tampered(k, lambda g: 1.1 * g) if k.dtype == torch.float32 else k, v, mask


def _value_gradient(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    return q, k, tampered(v, lambda g: 0.5 * g) if v is not None and v.dtype in HALVES else v, mask


def _sums_narrowly(cls: type[Attention]) -> dict[str, Any]:
    """In half precision, partial sums over parts of the keys are added in half precision."""

    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if q.dtype not in HALVES or k.shape[2] <= PARTS:
            return cls.compute(self, q, k, v, mask, **inputs)
        part = torch.arange(k.shape[2], device=k.device) * PARTS // k.shape[2]
        out: Any = 0
        for i in range(PARTS):
            out = out + cls.compute(self, q, k, v * (part == i)[:, None].to(v), mask, **inputs)
        return out

    return {"compute": compute}


def _overflows(out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Scores beyond the range of float16 give NaN."""
    if q.dtype != torch.float16:
        return out
    largest = q.float().norm(dim=-1).amax() * k.float().norm(dim=-1).amax()
    return torch.where(largest > torch.finfo(torch.float16).max, torch.nan, out)


def _round_to_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float() if x.dtype == torch.float32 else x


def _narrow_state(cls: type[Attention]) -> dict[str, Any]:
    def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        out, state = cls.advance(self, q, k, v, state, **inputs)
        return out, map_tensors(state, _round_to_bfloat16) if q.dtype in HALVES else state

    return {"advance": advance}


def _no_wide_state(subject: Subject) -> str | None:
    shape = subject.shape(4)
    attn = subject.make(shape, dtype=torch.bfloat16)
    state = attn.init_state(2, 8, torch.bfloat16, subject.device)
    call = subject.draw(shape, dtype=torch.bfloat16)
    state = call.both(slice(0, 1)).step(attn, state)[1]
    dtypes: set[torch.dtype] = set()
    map_tensors(state, lambda x: dtypes.add(x.dtype) or x)
    return None if torch.float32 in dtypes else "its state is as narrow as its inputs"


def _too_large_anyway(subject: Subject) -> str | None:
    """Without division by the sum of weights, results of such scores do not fit float16 either."""
    shape = subject.shape(9, head_dim=128, value_dim=128, batch=1)
    largest = draw_overflowing(subject, shape, torch.float16)[0].change(lambda x: x.double()).under(subject.mask())
    out = largest.run(subject.truth(shape, torch.float16))
    large = out.abs().max() > torch.finfo(torch.float16).max / 4
    return "its results are as large as its scores" if large else queries_do_nothing(subject)


def _no_half(subject: Subject) -> str | None:
    return subject.attn.why_not_dtype(torch.bfloat16)


def _effective_terms(subject: Subject, parts: int | None = None) -> float:
    """Effective number of keys of a row, or of parts of its keys, by their weights: gates and decays reduce it too."""
    n, largest = 600, 0.0
    for causal in subject.causalities:
        terms = weights(subject, n, n, Mask(causal=causal), oracle=True).detach().abs()
        if parts is not None:
            part = torch.arange(n, device=terms.device) * parts // n
            terms = terms.new_zeros(*terms.shape[:-1], parts).index_add(-1, part, terms)
        shares = terms / terms.sum(-1, keepdim=True)
        largest = max(largest, (1 / shares.square().sum(-1)).nanmean().item())  # some rows may have no weights
    return largest


def _few_keys(subject: Subject) -> str | None:
    few = _effective_terms(subject) < MIN_EFFECTIVE_KEYS
    return "few of its rows sum over many keys" if few else None


def _few_parts(subject: Subject) -> str | None:
    few = _effective_terms(subject, PARTS) < MIN_EFFECTIVE_PARTS
    return "few of its rows sum over many parts" if few else None


BUGS = (
    plant("float32_key_gradient", "in float32 the keys' gradient is 10% too large", compute(_key_gradient),
          ("gradient",), queries_do_nothing),
    plant("half_value_gradient", "in half precision the values' gradient is halved", compute(_value_gradient),
          ("gradient", "values"), _no_half),
    plant("narrow_sums", "in half precision parts are added up in half precision", _sums_narrowly,
          ("values",), lambda s: _no_half(s) or _few_parts(s), ("wide_sums",)),
    plant("float16_overflow", "in float16 scores beyond 65,504 are infinite", compute(after=_overflows),
          ("values",), lambda s: _no_half(s) or _too_large_anyway(s), ("scores_overflow",)),
    plant("narrow_state", "in half precision the state is stored in bfloat16", _narrow_state,
          ("decode", "values"), lambda s: _no_half(s) or _no_wide_state(s) or _few_keys(s), ("wide_state",)),
    plant("bfloat16_output", "float32 outputs are rounded to bfloat16",
          compute(after=lambda out, *_: out.bfloat16().to(out.dtype) if out.dtype == torch.float32 else out)),
)  # fmt: skip
