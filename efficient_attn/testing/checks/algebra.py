"""Algebra: properties of every weighted mean, every batch and every head."""

from __future__ import annotations

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Shape
from ..check import check
from ..subject import Call, Subject
from ..tensor_comparison import assert_close, describe


def has_values(subject: Subject) -> str | None:
    """Mechanisms that make their values from k have no v to play with."""
    return None if "v" in subject.draw(subject.shape(1)).tensors else "it takes no values"


def weights(subject: Subject, n: int, m: int, mask: Mask, *, oracle: bool = False) -> Tensor:
    """The weights ``[B, H, N, M]`` of each key: the output for the identity as values."""
    shape = subject.shape(n, m, value_dim=m)
    attn = subject.oracle(shape) if oracle else subject.make(shape)
    call = subject.draw(shape, mask=mask)
    return call.with_(v=torch.eye(m).to(call["v"]).expand(call["v"].shape)).run(attn)


def _no_groups(subject: Subject) -> str | None:
    if subject.attn.kv_heads == subject.heads:
        return "it insists on as many key-value heads as heads"
    return None


@check(needs="normalised", ask=has_values)
def weights_sum_to_one(subject: Subject) -> None:
    """Values of 1 give 1."""
    shape = subject.shape(130)
    attn = subject.make(shape)
    for mask in [Mask(causal=causal) for causal in subject.causalities]:
        call = subject.draw(shape, mask=mask)
        ones = torch.ones_like(call["v"])
        assert_close(call.with_(v=ones).run(attn), torch.ones_like(call["q"]), f"values of 1, {describe(mask)}")


@check(needs="normalised", ask=has_values)
def one_key(subject: Subject) -> None:
    """The only key's value is the output."""
    shape = subject.shape(1)
    call = subject.draw(shape)
    want = call["v"].repeat_interleave(shape.heads // shape.kv_heads, 1)
    for causal in subject.causalities:
        assert_close(call.under(Mask(causal=causal)).run(subject.make(shape)), want, "one query over one key")


@check(needs="exact", ask=has_values)
def convex(subject: Subject) -> None:
    """Weights are never negative, and sum to 1 or, for a query without keys, to 0."""
    for mask in subject.masks(subject.shape(70)):
        w = weights(subject, 70, 70, mask)
        assert w.min() >= 0, f"a weight of {w.min().item():.3g}, {describe(mask)}"
        total = w.sum(-1)
        assert_close(total, total.round().clamp(0, 1), f"sums of weights, {describe(mask)}")


@check(ask=has_values)
def value_linearity(subject: Subject) -> None:
    """The output is linear in the values."""
    shape = subject.shape(130)
    attn = subject.make(shape)
    for causal in subject.causalities:
        call = subject.draw(shape, mask=Mask(causal=causal))
        other = torch.roll(call["v"], 1, 2) - 0.5
        mixed = call.with_(v=2 * call["v"] - 3 * other).run(attn)
        apart = 2 * call.run(attn) - 3 * call.with_(v=other).run(attn)
        assert_close(mixed, apart, f"2 f(v) - 3 f(w), {describe(call.mask)}")


@check(needs="bidirectional", unless="positional")
def key_order(subject: Subject) -> None:
    """Permuting keys together with their values changes nothing."""
    for n, m in [(130, 130)] + [(17, 300)] * subject.traits.cross:
        shape = subject.shape(n, m)
        attn, call = subject.make(shape), subject.draw(shape, mask=Mask())
        order = torch.randperm(m, generator=torch.Generator().manual_seed(3)).to(subject.device)
        want = call.run(attn)[:, :, order] if call.tied else call.run(attn)  # queries that are the keys move along
        assert_close(call.keys(order).run(attn), want, f"keys shuffled, N={n}, M={m}")


@check()
def batch_independence(subject: Subject) -> None:
    """A row of a batch has the result that it would have alone, however large or small other rows are."""
    shape = subject.shape(70, batch=3)
    attn, drawn = subject.make(shape), subject.draw(shape)
    scales = torch.tensor([1.0, 100.0, 0.0], device=subject.device).to(subject.dtype).view(3, 1, 1, 1)
    for number, mask in enumerate(subject.masks(shape)):
        call = drawn.change(lambda x: x * scales.view(3, *[1] * (x.ndim - 1))) if number % 2 else drawn
        out = call.under(mask).run(attn)
        for b in range(3):
            row_lengths = {f: getattr(mask, f)[b : b + 1] for f in ("key_lengths", "key_mask") if f in mask.used}
            alone = call.change(lambda x, b=b: x[b : b + 1]).under(Mask(causal=mask.causal, **row_lengths))
            assert_close(alone.run(attn), out[b : b + 1], f"row {b} of 3 alone, {describe(mask)}")


def _touch_group(call: Call, shape: Shape, group: int) -> Call:
    """The call with one key-value head and the query heads that share it drawn again."""

    def touch(x: Tensor) -> Tensor:
        if x.shape[1] not in (shape.heads, shape.kv_heads) or x.shape[1] == 1 < shape.kv_heads:
            return x  # an input without heads belongs to them all
        width = x.shape[1] // shape.kv_heads
        x = x.clone()
        x[:, group * width : (group + 1) * width] = x[:, group * width : (group + 1) * width].flip(2) * 0.7 + 0.1
        return x

    return call.change(touch)


@check()
def head_independence(subject: Subject) -> None:
    """A key-value head and its query heads, changed, change no other head; grouped heads are adjacent."""
    for kv_heads in {subject.heads, 2 if subject.traits.grouped else subject.heads}:
        shape = subject.shape(70, kv_heads=kv_heads)
        attn, call = subject.make(shape), subject.draw(shape)
        for causal in subject.causalities:
            _heads_apart(call.under(Mask(causal=causal)), attn, shape)


def _heads_apart(call: Call, attn: Attention, shape: Shape) -> None:
    before, width = call.run(attn), shape.heads // shape.kv_heads
    for group in range(shape.kv_heads):
        group_heads = range(group * width, (group + 1) * width)
        after = _touch_group(call, shape, group).run(attn)
        others = [h for h in range(shape.heads) if h not in group_heads]
        label = f"heads {others} after key-value head {group} of {shape.kv_heads} changed, {describe(call.mask)}"
        assert_close(after[:, others], before[:, others], label)
        for h in group_heads:
            assert not torch.equal(after[:, h], before[:, h]), f"head {h} does not use its key-value head {group}"
    if not call.tied:
        after = call.with_(q=torch.cat([call["q"][:, :1] + 1, call["q"][:, 1:]], 1)).run(attn)
        assert_close(
            after[:, 1:], before[:, 1:], f"other heads after the queries of head 0 changed, {describe(call.mask)}"
        )


@check(needs="grouped", ask=_no_groups)
def grouped_equals_oracle(subject: Subject) -> None:
    """Fewer key-value heads give the reference result, with every mask, with gradients."""
    for kv_heads, n, m in [(2, 70, 70), (1, 17, 130) if subject.traits.cross else (1, 70, 70)]:
        shape = subject.shape(n, m, kv_heads=subject.attn.kv_heads or kv_heads)
        fast, dense, call = subject.make(shape), subject.oracle(shape), subject.draw(shape)
        for mask in subject.masks(shape):
            _same_grouped(subject, call.under(mask), fast, dense)


def _same_grouped(subject: Subject, call: Call, fast: Attention, dense: Attention) -> None:
    label = f"{call['k'].shape[1]} key-value heads, {describe(call.mask)}"
    with torch.no_grad():
        assert_close(call.run(fast), call.run(dense), label)
    if subject.traits.gradient:
        (_, got), (_, want) = call.gradients(fast), call.gradients(dense)
        for name in want:
            assert_close(got[name], want[name], f"gradient by {name}, {label}")


def _cannot_expand(subject: Subject) -> str | None:
    if subject.attn.kv_heads is not None:
        return f"it insists on {subject.attn.kv_heads} key-value heads"
    return "its parameters belong to heads" if any(True for _ in subject.attn.parameters()) else None


@check(needs="grouped", ask=_cannot_expand)
def grouped_equals_expanded(subject: Subject) -> None:
    """Sharing a key-value head is the same as repeating it for each head of its group."""
    full = subject.make(subject.shape(70))
    for kv_heads in (1, 2):
        shape = subject.shape(70, kv_heads=kv_heads)
        attn, call = subject.make(shape), subject.draw(shape)
        for mask in subject.masks(shape):
            want = _expanded(call, shape).under(mask).run(full)
            assert_close(call.under(mask).run(attn), want, f"{kv_heads} key-value heads, {describe(mask)}")


def _expanded(call: Call, shape: Shape) -> Call:
    """A key-value head for every head; an input shared by all heads is unchanged."""
    shared = {name for name, i in call.tensors.items() if i.shape[1] != shape.kv_heads}
    repeat = shape.heads // shape.kv_heads
    keys = [name for name, side in call.sides.items() if side == "key" and name in call.tensors and name not in shared]
    return call.with_(**{name: call[name].repeat_interleave(repeat, 1) for name in keys})


CHECKS = (
    weights_sum_to_one,
    one_key,
    head_independence,
    grouped_equals_oracle,
    grouped_equals_expanded,
    batch_independence,
    value_linearity,
    key_order,
    convex,
)
