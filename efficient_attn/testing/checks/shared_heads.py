"""Key-value heads that query heads share are not copied for each query head."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...contract.decode_state import state_bytes
from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...contract.shapes import Shape
from ...instruments.memory import COUNTED_DEVICES, measure_footprint
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject

# Few queries of many heads over many keys, so that copies of the keys for each head dominate the memory. Built-in
# mechanisms use about a tenth of such copies: a third with a thousand landmarks for each head, two thirds if keys are
# computed from latents for some heads at a time.
GROUP, QUERIES, KEYS, WIDTH = 32, 4, 8192, 32
MIN_CACHE = 64  # positions: copies of a shorter cache are no larger than the other memory


def _sizes(subject: Subject, n: int) -> Shape:
    kv_heads = subject.attn.kv_heads or 1
    heads = GROUP * kv_heads
    return subject.shape(n, KEYS, batch=1, heads=heads, kv_heads=kv_heads, head_dim=WIDTH, value_dim=WIDTH)


def _check_peak(
    subject: Subject, run: Callable[[], object], copy: int, shape: Shape, label: str, *, parameters: int = 0
) -> None:
    """Assert that the peak memory of a function is below that of keys repeated for each head. parameters: bytes of
    their gradients, which are no copies of keys."""
    peak = measure_footprint(run, device=torch.device(subject.device).type).peak
    assert peak is not None
    assert peak < copy + parameters, (
        f"{label} uses {peak} bytes at its peak with H={shape.heads} Hkv={shape.kv_heads} N={shape.n} M={shape.m}, "
        f"keys repeated for each head would be {copy}: fold the query heads of a group into rows, so that nothing of "
        "the keys' length is made for each of them, and do not pad queries to the length of keys"
    )


def _no_memory_limit(subject: Subject) -> str | None:
    if subject.attn.backend == "dense":
        return "it runs its reference, whose memory is not limited"
    device = torch.device(subject.device).type
    return None if device in COUNTED_DEVICES else f"{device} has no counter of peak memory"


@check(needs="grouped cross", skip_reason=_no_memory_limit)
def groups_are_not_expanded(subject: Subject) -> None:
    """A call makes no copy of shared keys for each query head."""
    with torch.no_grad():
        _check_calls(subject, lambda call, attn: call.run(attn))


def computes_own_keys(subject: Subject) -> str | None:
    """Why a check of copies in the backward pass does not apply; None if it does.

    Keys and values that each head computes are stored for the backward pass, and are no copies.
    """
    return _no_memory_limit(subject) if subject.traits.values else "its heads compute their own keys and values"


@check(needs="grouped cross gradient", skip_reason=computes_own_keys)
def gradients_are_not_expanded(subject: Subject) -> None:
    """A backward pass makes no copy of shared keys or of their gradients for each query head."""
    _check_calls(subject, lambda call, attn: call.gradients(attn), gradient=True)


def _check_calls(subject: Subject, run: Callable[[Call, Attention], object], *, gradient: bool = False) -> None:
    """Compare the peak memory of every backend with the size of keys repeated for each head, for all kinds of masks."""
    shape = _sizes(subject, QUERIES)
    call = subject.draw(shape, dtype=torch.float32)
    masks = subject.plain_masks
    if subject.traits.padding:
        masks.append(subject.mask(key_lengths=subject.lengths(KEYS - 1)))
    if subject.traits.causal:  # such queries may run the same code as N = M
        masks.append(Mask(causal=True, query_start=0))
    copy = GROUP * call["k"].nbytes
    for backend in subject.backends_for(torch.float32):
        attn = subject.make(shape, backend=backend, dtype=torch.float32)

        def run_all(attn: Attention = attn) -> None:
            for mask in masks:
                run(call.under(mask), attn)

        parameters = sum(x.nbytes for x in attn.parameters()) if gradient else 0
        _check_peak(subject, run_all, copy, shape, backend, parameters=parameters)


def no_long_cache(subject: Subject) -> str | None:
    """Why copies of the decode state for each head would not be detected; None if they would."""
    if reason := _no_memory_limit(subject):
        return reason
    attn = subject.make(_sizes(subject, 1), dtype=torch.float32)
    half, full = (state_bytes(attn.init_state(1, m, device=subject.device)) for m in (MIN_CACHE // 2, MIN_CACHE))
    return None if half < full else f"its state is no cache of {MIN_CACHE} positions or more"


@check(needs="grouped decode", skip_reason=no_long_cache)
def cache_is_not_expanded(subject: Subject) -> None:
    """A decode step after a long context makes no copy of the cache for each query head."""
    shape = _sizes(subject, 1)
    attn = subject.make(shape, dtype=torch.float32)
    call = subject.draw(shape, mask=Mask(causal=True), dtype=torch.float32)
    state = call.absorb(attn, attn.init_state(1, KEYS + 2, device=subject.device))
    cache_bytes = [call[name].nbytes for name in ("k", "v") if name in call.tensors]
    copy = GROUP * state_bytes(state) * cache_bytes[0] // sum(cache_bytes)

    def step() -> None:
        nonlocal state
        state = call.keys(slice(-1, None)).step(attn, state)[1]

    with torch.no_grad():
        _check_peak(subject, step, copy, shape, "a step")
