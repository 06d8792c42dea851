"""Algebra: properties of weighted means, and independence of rows of a batch and of heads."""

from __future__ import annotations

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Shape
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject
from ..tensor_comparison import assert_close, describe
from .reference import assert_equals_reference


def no_values(subject: Subject) -> str | None:
    """Why a check that replaces v does not apply; None if it does."""
    return None if "v" in subject.draw(subject.shape(1)).tensors else "it takes no values"


def weights(subject: Subject, n: int, m: int, mask: Mask, *, oracle: bool = False) -> Tensor:
    """The weights ``[B, H, N, M]`` of all keys: the output for the identity matrix as values."""
    attn, call = subject.prepare(n, m, mask=mask, value_dim=m)
    if oracle:
        attn.backend = "dense"
    return call.with_(v=torch.eye(m).to(call["v"]).expand(call["v"].shape)).run(attn)


def _no_groups(subject: Subject) -> str | None:
    same = subject.attn.kv_heads == subject.heads
    return "it requires as many key-value heads as query heads" if same else None


@check(needs="normalised", skip_reason=no_values)
def weights_sum_to_one(subject: Subject) -> None:
    """Values of 1 give 1."""
    for n in (1, 130):
        attn, call = subject.prepare(n)
        ones = call.with_(v=torch.ones_like(call["v"]))
        for mask in subject.plain_masks:
            label = f"values of 1, N={n}, {describe(mask)}"
            assert_close(ones.under(mask).run(attn), torch.ones_like(call["q"]), label)


def _change_heads(call: Call, shape: Shape, kv_head: int) -> Call:
    """The call with other contents of one key-value head and of the query heads that share it. Further inputs, which
    may have a range, are permuted."""
    further = {id(x) for name, x in call.tensors.items() if name not in ("q", "k", "v")}

    def change(x: Tensor) -> Tensor:
        if x.shape[1] not in (shape.heads, shape.kv_heads) or x.shape[1] == 1 < shape.kv_heads:
            return x  # an input without heads belongs to all of them
        width = x.shape[1] // shape.kv_heads
        heads = slice(kv_head * width, (kv_head + 1) * width)
        flipped = x[:, heads].flip(2)
        changed = x.clone()
        changed[:, heads] = flipped if id(x) in further else flipped * 0.7 + 0.1
        return changed

    return call.change(change)


@check()
def head_independence(subject: Subject) -> None:
    """Changing a key-value head and its query heads changes no other head; grouped heads are adjacent."""
    for kv_heads in subject.kv_head_counts:
        shape = subject.shape(70, kv_heads=kv_heads)
        attn, call = subject.make(shape), subject.draw(shape)
        for mask in subject.plain_masks:
            _check_heads(call.under(mask), attn, shape)


def _check_heads(call: Call, attn: Attention, shape: Shape) -> None:
    before, width = call.run(attn), shape.heads // shape.kv_heads
    for kv_head in range(shape.kv_heads):
        own_heads = range(kv_head * width, (kv_head + 1) * width)
        after = _change_heads(call, shape, kv_head).run(attn)
        others = [h for h in range(shape.heads) if h not in own_heads]
        label = f"heads {others} after key-value head {kv_head} of {shape.kv_heads} changed, {describe(call.mask)}"
        assert_close(after[:, others], before[:, others], label)
        for h in own_heads:
            assert not torch.equal(after[:, h], before[:, h]), f"head {h} does not use its key-value head {kv_head}"
    if not call.shares_qk:
        after = call.with_(q=torch.cat([call["q"][:, :1] + 1, call["q"][:, 1:]], 1)).run(attn)
        label = f"other heads after the queries of head 0 changed, {describe(call.mask)}"
        first = width if attn.traits.mixes_heads else 1
        assert_close(after[:, first:], before[:, first:], label)


@check(needs="grouped", skip_reason=_no_groups)
def grouped_equals_oracle(subject: Subject) -> None:
    """With fewer key-value heads, outputs and gradients equal the reference for every mask."""
    for kv_heads, n, m in [(2, 70, 70), (1, 17, 130) if subject.traits.cross else (1, 70, 70)]:
        assert_equals_reference(subject, subject.shape(n, m, kv_heads=kv_heads), gradients=True)


def _cannot_expand(subject: Subject) -> str | None:
    if subject.attn.kv_heads is not None:
        return f"it requires {subject.attn.kv_heads} key-value heads"
    return "its parameters belong to heads" if any(True for _ in subject.attn.parameters()) else None


@check(needs="grouped", skip_reason=_cannot_expand)
def grouped_equals_expanded(subject: Subject) -> None:
    """Sharing a key-value head is the same as repeating it for each query head of its group; of equal queries in a
    group, where its heads decide together."""
    full = subject.make(subject.shape(70))
    for kv_heads in (1, 2):
        attn, call = subject.prepare(70, kv_heads=kv_heads)
        if subject.traits.mixes_heads:
            call = call.with_(q=_expanded_queries(call["q"], subject.heads // kv_heads))
        for masked in subject.under_masks(call):
            want = _expanded(masked, kv_heads, subject.heads // kv_heads).run(full)
            assert_close(masked.run(attn), want, f"{kv_heads} key-value heads, {describe(masked.mask)}")


def _expanded_queries(q: Tensor, width: int) -> Tensor:
    """The queries of the first head of each group, for all of its heads."""
    return q[:, ::width].repeat_interleave(width, 1)


def _expanded(call: Call, kv_heads: int, repeat: int) -> Call:
    """The call with a key-value head for every query head; an input shared by all heads is unchanged."""
    return call.change(lambda x: x.repeat_interleave(repeat, 1) if x.shape[1] == kv_heads else x, "key")


@check()
def batch_independence(subject: Subject) -> None:
    """A row of a batch has the result that it would have alone, however large or small other rows are."""
    attn, drawn = subject.prepare(70, batch=3)
    scales = torch.tensor([1.0, 100.0, 0.0], device=subject.device).to(subject.dtype)
    scaled = drawn.scale(scales.view(3, 1, 1, 1))
    for number, mask in enumerate(subject.masks(subject.shape(70, batch=3))):
        call = scaled if number % 2 else drawn
        out = call.under(mask).run(attn)
        for b in range(3):
            row_lengths = {f: getattr(mask, f)[b : b + 1] for f in ("key_lengths", "key_mask") if f in mask.used}
            alone = call.change(lambda x, b=b: x[b : b + 1]).under(Mask(causal=mask.causal, **row_lengths))
            assert_close(alone.run(attn), out[b : b + 1], f"row {b} of 3 alone, {describe(mask)}")


@check(needs="linear_values", skip_reason=no_values)
def value_linearity(subject: Subject) -> None:
    """The output is linear in the values."""
    attn, drawn = subject.prepare(130)
    other = torch.roll(drawn["v"], 1, 2) - 0.5
    for call in map(drawn.under, subject.plain_masks):
        got = call.with_(v=2 * call["v"] - 3 * other).run(attn)
        want = 2 * call.run(attn) - 3 * call.with_(v=other).run(attn)
        assert_close(got, want, f"2 f(v) - 3 f(w), {describe(call.mask)}")


@check(needs="bidirectional", unless="positional")
def key_order(subject: Subject) -> None:
    """Permuting keys together with their values changes nothing."""
    for n, m in [(130, 130)] + [(17, 300)] * subject.traits.cross:
        attn, call = subject.prepare(n, m, mask=Mask())
        order = torch.randperm(m, generator=torch.Generator().manual_seed(3)).to(subject.device)
        # queries that are the keys are permuted too
        want = call.run(attn)[:, :, order] if call.shares_qk else call.run(attn)
        assert_close(call.keys(order).run(attn), want, f"keys permuted, N={n}, M={m}")


@check(needs="exact", skip_reason=no_values)
def convex(subject: Subject) -> None:
    """Weights are never negative, and sum to 1 or, for a query without keys, to 0."""
    for mask in subject.masks(subject.shape(70)):
        w = weights(subject, 70, 70, mask)
        assert w.min() >= 0, f"a weight of {w.min().item():.3g}, {describe(mask)}"
        total = w.sum(-1)
        assert_close(total, total.round().clamp(0, 1), f"sums of weights, {describe(mask)}")
