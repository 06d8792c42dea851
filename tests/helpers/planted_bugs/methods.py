"""Methods of the planted bugs, and conditions under which a bug changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from efficient_attn.contract.decode_state import KVCache, LatentCache, RollingCache
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Values
from efficient_attn.testing.checks.shared_heads import no_long_cache
from efficient_attn.testing.subject import Subject

Method = Callable[..., Any]
Methods = Callable[[type[Attention]], dict[str, Any]]


def compute(before: Method | None = None, after: Method | None = None) -> Methods:
    """Methods with a ``compute`` whose arguments or output are changed."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
            arguments: Any = (q, k, v, mask) if before is None else before(q, k, v, mask)
            out = cls.compute(self, *arguments, **inputs)
            return out if after is None else after(out, q, k, v, mask)

        return {"compute": compute}

    return methods


def start(q: Tensor, k: Tensor, mask: Mask) -> int:
    return mask.start(q.shape[2], k.shape[2])


def leak(out: Tensor, q: Tensor, k: Tensor, v: Values, mask: Mask) -> Tensor:
    if not mask.causal:
        return out
    following = torch.arange(q.shape[2], device=q.device) + start(q, k, mask) + 1
    in_range = ((following >= 1) & (following < k.shape[2]))[:, None]
    values = (k if v is None else v).mean(-1, keepdim=True).repeat_interleave(q.shape[1] // k.shape[1], 1)
    values = values[:, :, following.clamp(0, k.shape[2] - 1)]
    return out + 1e-6 * values.masked_fill(~in_range, 0)


class Tampered(torch.autograd.Function):
    """The identity with a changed gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grads[0]), None


def tampered(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    return Tampered.apply(x, change) if x.requires_grad else x  # pyright: ignore[reportReturnType]


def leaks_backward(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    def with_next(gradient: Tensor) -> Tensor:
        return gradient + 1e-3 * gradient.roll(1, 2)

    return (q, tampered(k, with_next), v, mask) if v is None else (q, k, tampered(v, with_next), mask)


def blind_to(value: str) -> Method:
    """Rows that see no key get NaN, or a small constant, instead of zeros."""

    def after(out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        sees_any = mask.dense(q.shape[2], k.shape[2], device=q.device).any(-1, keepdim=True)
        return torch.where(sees_any, out, float("nan") if value == "nan" else 1e-3)

    return after


def interleaved(cls: type[Attention]) -> dict[str, Any]:
    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        heads, kv_heads = q.shape[1], k.shape[1]
        order = torch.arange(heads, device=q.device).view(heads // kv_heads, kv_heads).mT.flatten()
        return cls.compute(self, q[:, order], k, v, mask, **inputs)[:, order.argsort()]

    return {"compute": compute}


def each_head(x: Tensor, q: Tensor) -> Tensor:
    """Key-value heads repeated for each head of their groups."""
    return x if x is None else x.repeat_interleave(q.shape[1] // x.shape[1], 1)  # no values if the mechanism takes none


def expands_groups(cls: type[Attention]) -> dict[str, Any]:
    def compute(self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        for name, i in self.traits.inputs.items():
            if i.side == "key" and i.per_head:
                inputs[name] = each_head(inputs[name], q)
        return cls.compute(self, q, each_head(k, q), each_head(v, q), mask, **inputs)

    return {"compute": compute}


def expands_gradients(q: Tensor, k: Tensor, v: Values, mask: Mask) -> tuple[Tensor, Tensor, Values, Mask]:
    def by_each_head(gradient: Tensor) -> Tensor:
        return each_head(gradient, q).unflatten(1, (k.shape[1], -1)).mean(2)

    return q, tampered(k, by_each_head), v, mask


def expands_cache(cls: type[Attention]) -> dict[str, Any]:
    def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        tensors = {f.name: x for f in fields(state) if isinstance(x := getattr(state, f.name), Tensor)}
        expanded = replace(state, **{name: each_head(x, q) for name, x in tensors.items()})
        out, _ = cls.advance(self, q, each_head(k, q), each_head(v, q), expanded, **inputs)
        return out, cls.absorb(self, k, v, state, **inputs)

    return {"advance": advance}


def without(field: str) -> Methods:
    """Methods with a ``forward`` that ignores a mask field which the base class implements."""

    def methods(cls: type[Attention]) -> dict[str, Any]:
        def forward(
            self: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None, **inputs: Tensor
        ) -> Tensor:
            ignored = {} if self.backend == "dense" else {field: None}
            return cls.forward(self, q, k, v, replace(mask or Mask(), **ignored), **inputs)

        return {"forward": forward}

    return methods


def any_field(cls: type[Attention]) -> dict[str, Any]:
    return {"known_mask_fields": cls.known_mask_fields | {"segments"}}


def forgets_newest(cls: type[Attention]) -> dict[str, Any]:
    def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        newest = (k * 0, v if v is None else v * 0) if q.shape[2] == 1 else (k, v)
        return cls.advance(self, q, *newest, state, **inputs)

    return {"advance": advance}


def forgets_oldest(cls: type[Attention]) -> dict[str, Any]:
    """The outputs of a step are correct, but its state lacks the first position of each longer step."""

    def advance(self: Attention, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        if q.shape[2] == 1:
            return cls.advance(self, q, k, v, state, **inputs)
        out, _ = cls.advance(self, q, k, v, copy.deepcopy(state), **inputs)
        without_first = k.clone(), v if v is None else v.clone()
        for x in without_first:
            if x is not None:
                x[:, :, 0] = 0
        return out, cls.advance(self, q, *without_first, state, **inputs)[1]

    return {"advance": advance}


def overruns(cls: type[Attention]) -> dict[str, Any]:
    def new_state(self: Attention, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        return cls.new_state(self, batch, max_len + 1, dtype, device)

    return {"new_state": new_state}


def mutates(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor, Mask]:
    k.data.mul_(1.5)
    return q, k, v, mask


def noise(out: Tensor, *_: Any) -> Tensor:
    return out + 1e-6 * torch.randn(out.shape, device=out.device).to(out)


def one_value(out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    single_key = k.shape[2] == q.shape[2] == 1 and v.shape[1] in (1, q.shape[1])
    return v.expand(out.shape) if single_key and mask.used <= {"causal"} else out


def late(out: Tensor, q: Tensor, *_: Any) -> Tensor:
    is_late = (torch.arange(q.shape[2], device=q.device) >= 256)[:, None]
    return torch.where(is_late, out * (1 + 1e-6), out)


def seeded(out: Tensor, *_: Any) -> Tensor:
    torch.manual_seed(0)
    return out


def scale_free(subject: Subject) -> str | None:
    shape = subject.shape(17)
    attn, call = subject.oracle(shape), subject.draw(shape)
    longer = call.with_(q=call["q"] * 1.01)
    same = torch.allclose(longer.run(attn), call.run(attn), rtol=1e-12, atol=1e-12)
    return "its output is independent of the length of queries" if same else None


def queries_do_nothing(subject: Subject) -> str | None:
    """Whether outputs are independent of queries."""
    shape = subject.shape(17)
    attn, call = subject.oracle(shape), subject.draw(shape)
    same = torch.equal(call.with_(q=call["q"] + 1).run(attn), call.run(attn))
    return "its output is independent of queries" if same else None


def hidden_keys_weigh_nothing(subject: Subject) -> str | None:
    """Whether masking has no effect, as masked keys are zeroed and zero keys have no weight with some features."""
    shape = subject.shape(17)
    attn = subject.oracle(shape)
    j = torch.arange(17, device=subject.device)
    visible = (j != 3).expand(2, -1)
    call = subject.draw(shape, mask=subject.mask(key_mask=visible))
    blank = call.change(lambda x: x.masked_fill(~visible.view(2, 1, -1, *[1] * (x.ndim - 3)), 0), "key")
    same = torch.equal(blank.under(subject.mask()).run(attn), call.run(attn))
    return "a zero key has no weight" if same else queries_do_nothing(subject)


def one_kv_head(subject: Subject) -> str | None:
    return "one key-value head can be assigned in only one way" if subject.attn.kv_heads == 1 else None


def copies_heads(subject: Subject) -> str | None:
    views = subject.attn.kv_heads in (None, 1, subject.heads)
    return None if views else "groups of heads cannot be a view of the values"


def no_cache(subject: Subject) -> str | None:
    if reason := no_long_cache(subject):
        return reason
    state = subject.make(subject.shape(4)).init_state(2, 8)
    is_cache = isinstance(state, KVCache | RollingCache | LatentCache)
    return None if is_cache else "its cache is of another type"


def never_meet(subject: Subject) -> str | None:
    """Whether packed sequences and one long sequence are equal for the reference."""
    shape = subject.shape(12, batch=1)
    attn, call = subject.oracle(shape), subject.draw(shape)
    packed = call.under(replace(call.mask, cu_seqlens=subject.lengths(0, 5, 12)))
    same = torch.allclose(packed.run(attn), call.run(attn), rtol=1e-12, atol=1e-12)
    return "its positions do not see their neighbours" if same else None


def alignment_free(subject: Subject) -> str | None:
    """Whether the result does not depend on the alignment of queries, as without causality if they are pooled by
    order."""
    shape = subject.shape(4, 9)
    attn, call = subject.oracle(shape), subject.draw(shape)
    masks = [Mask(causal=causal) for causal in subject.causalities]
    moved = (call.under(replace(mask, query_start=0)).run(attn) for mask in masks)
    same = all(torch.equal(x, call.under(mask).run(attn)) for x, mask in zip(moved, masks, strict=True))
    return "the alignment of its queries changes nothing" if same else None


def no_bfloat16(subject: Subject) -> str | None:
    """A backend that refuses bfloat16 cannot be wrong in it."""
    return subject.attn.why_not_dtype(torch.bfloat16)


def no_past(subject: Subject) -> str | None:
    """Whether the second position does not see the first."""
    shape = subject.shape(2)
    attn, call = subject.oracle(shape), subject.draw(shape, mask=Mask(causal=True))
    # further inputs may have a range
    moved = {n: torch.cat([x[:, :, :1] + 1, x[:, :, 1:]], 2) for n, x in call.tensors.items() if n in ("k", "v")}
    first = call.with_(**moved)
    same = torch.equal(first.run(attn)[:, :, 1], call.run(attn)[:, :, 1])
    return "positions do not see earlier ones" if same else None


def changed(**fields: Any) -> Callable[..., tuple[Tensor, Tensor, Tensor, Mask]]:
    """Arguments with some mask fields replaced; a function returns the new value."""

    def before(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor, Mask]:
        values = {f: x(q, k, mask) if callable(x) else x for f, x in fields.items()}
        return q, k, v, replace(mask, **values)

    return before


def first_row_lengths(q: Tensor, k: Tensor, mask: Mask) -> Tensor | None:
    return None if mask.key_lengths is None else mask.key_lengths[:1].expand(q.shape[0])


def zero_unless_given(q: Tensor, k: Tensor, mask: Mask) -> int:
    return 0 if mask.query_start is None else mask.query_start


def by_memory(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor, Mask]:
    base = q._base if q._base is not None else q
    packed = torch.empty(q.shape, device="meta").stride()
    fits = base.numel() >= q.storage_offset() + q.numel()
    return (q if q.is_contiguous() or not fits else q.as_strided(q.shape, packed), k, v, mask)
