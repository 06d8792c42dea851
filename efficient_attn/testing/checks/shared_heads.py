"""Shared heads are stored once: no memory is used for a copy of them for each head of a group."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...contract.decode_state import state_bytes
from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Dims, Shape
from ...instruments.memory import COUNTED_DEVICES, measure_footprint
from ..check import check
from ..subject import Call, Subject

# Few queries of many heads over many keys, so that other memory of heads is small relative to a copy of the keys
# for each of them. Built-in mechanisms use a tenth of such a copy as a rule, a third for a thousand landmarks of a
# head, two thirds if keys are computed from latents some heads at a time. Copies of keys and values are two.
GROUP, QUERIES, KEYS, WIDTH = 32, 4, 8192, 32
LEAST = 64  # positions in a cache: copies of a shorter one are no larger than other memory of heads


def _sizes(subject: Subject, n: int) -> Shape:
    kv_heads = subject.attn.kv_heads or 1
    heads = GROUP * kv_heads
    return subject.shape(n, KEYS, batch=1, heads=heads, kv_heads=kv_heads, head_dim=WIDTH, value_dim=WIDTH)


def _made(subject: Subject, shape: Shape, backend: str | None = None) -> Attention:
    dims = Dims(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        value_dim=shape.value_dim,
        max_len=KEYS + 2,  # two steps after the context
    )
    return subject.new(dims, backend=backend).to(subject.device)


def _peak(subject: Subject, call: Callable[[], None]) -> int:
    peak = measure_footprint(call, device=torch.device(subject.device).type).peak
    assert peak is not None
    return peak


def _not_counted(subject: Subject) -> str | None:
    if subject.attn.backend == "dense":
        return "it runs its reference, whose memory is not limited"
    device = torch.device(subject.device).type
    return None if device in COUNTED_DEVICES else f"{device} has no counter of peak memory"


@check(needs="grouped cross", ask=_not_counted)
def groups_are_not_expanded(subject: Subject) -> None:
    """A call with keys shared by heads makes no copy of them for each head."""
    with torch.no_grad():
        _hold_to_keys(subject, lambda call, attn: call.run(attn))


def own_keys(subject: Subject) -> str | None:
    """Mechanisms whose heads compute their own keys save those for the backward pass: they are not copies."""
    return _not_counted(subject) if subject.traits.values else "its heads compute their own keys and values"


@check(needs="grouped cross gradient", ask=own_keys)
def gradients_are_not_expanded(subject: Subject) -> None:
    """The backward pass of such a call makes no copy either, of keys or of their gradients."""
    _hold_to_keys(subject, lambda call, attn: call.gradients(attn))


def _hold_to_keys(subject: Subject, run: Callable[[Call, Attention], object]) -> None:
    """Peak memory below that of the keys repeated for each head, with every kind of mask and every backend."""
    shape = _sizes(subject, QUERIES)
    call = subject.draw(shape, dtype=torch.float32)
    masks = [Mask(causal=causal) for causal in subject.causalities]
    if subject.traits.padding:
        masks.append(subject.mask(key_lengths=subject.lengths(KEYS - 1)))
    if subject.traits.causal:  # queries aligned with the first keys run like as many queries as keys
        masks.append(Mask(causal=True, query_start=0))
    copy = GROUP * call["k"].nbytes
    for backend in subject.fast_backends:
        attn = _made(subject, shape, backend)

        def each_mask(attn: Attention = attn) -> None:
            for mask in masks:
                run(call.under(mask), attn)

        peak = _peak(subject, each_mask)
        assert peak < copy, f"{backend} uses {peak} bytes at its peak, keys repeated for each head are {copy}"


def no_long_cache(subject: Subject) -> str | None:
    """Why a copy of the decode state for each head would not be visible; None if it would."""
    if reason := _not_counted(subject):
        return reason
    attn = _made(subject, _sizes(subject, 1))
    half, whole = (state_bytes(attn.init_state(1, m, device=subject.device)) for m in (LEAST // 2, LEAST))
    return None if half < whole else f"its state is no cache of {LEAST} positions and more"


@check(needs="grouped decode", ask=lambda s: no_long_cache(s) if s.traits.decode else None)
def cache_is_not_expanded(subject: Subject) -> None:
    """A step after a long context makes no copy of the cache for each head."""
    shape = _sizes(subject, 1)
    attn, call = _made(subject, shape), subject.draw(shape, mask=Mask(causal=True), dtype=torch.float32)
    newest = call.keys(slice(-1, None))
    key_tensors = {name: x for name, x in call.tensors.items() if call.sides[name] == "key"}
    keys, values = key_tensors.pop("k"), key_tensors.pop("v", None)
    state = attn.absorb(keys, values, attn.init_state(1, KEYS + 2, device=subject.device), **key_tensors)
    cache_bytes = [x.nbytes for x in (keys, values) if x is not None]
    copy = GROUP * state_bytes(state) * cache_bytes[0] // sum(cache_bytes)

    def step() -> None:
        nonlocal state
        state = newest.step(attn, state)[1]

    with torch.no_grad():
        peak = _peak(subject, step)
    assert peak < copy, f"a step uses {peak} bytes at its peak, the cached keys repeated for each head are {copy}"


CHECKS = (groups_are_not_expanded, gradients_are_not_expanded, cache_is_not_expanded)
