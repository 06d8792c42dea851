"""Outputs, refusals, side effects, seeds, and pair counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...errors import UnsupportedError, UsageError
from ...registry import create
from ..check import check
from ..subject import Call, Subject
from ..tensor_comparison import TOLERANCES, assert_close, assert_finite, assert_same, describe, expect_error
from .algebra import no_values, weights


@dataclass(frozen=True, eq=False)
class LaterMask(Mask):
    """A mask of a later version, with a field that no mechanism supports yet."""

    _: KW_ONLY
    segments: Tensor | None = None


@check()
def output(subject: Subject) -> None:
    """The output is a new finite tensor ``[B, H, N, E]`` of the input's dtype and device, with a graph if inputs need
    one."""
    for n, m in subject.sizes:
        shape = subject.shape(n, m, value_dim=5)
        call = subject.draw(shape)
        if subject.traits.gradient:
            call = call.leaves()
        out = call.run(subject.make(shape))
        label = f"output for N={n}, M={m}"
        assert type(out) is Tensor, f"{label}: a {type(out).__name__}, expected a torch.Tensor"
        want = (2, shape.heads, n, 5)
        assert tuple(out.shape) == want, f"{label}: shape {list(out.shape)}, expected {list(want)}"
        assert out.dtype == subject.dtype, f"{label}: dtype {out.dtype}, expected {subject.dtype}"
        assert out.device == call["q"].device, f"{label}: on {out.device}, expected {call['q'].device}"
        assert_finite(out.detach(), label)
        assert out.requires_grad == subject.traits.gradient, f"{label}: requires_grad is {out.requires_grad}"
        for name, x in call.tensors.items():
            shared = out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            assert not shared, f"{label}: shares its memory with {name}"


def _modes() -> tuple[object, ...]:
    grad_modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return *grad_modes, torch.get_num_threads(), torch.get_default_dtype()


@contextmanager
def keep_global_state(action: str) -> Iterator[None]:
    """Raise `AssertionError` if the block changes torch's random state or modes. action: the subject of the message."""
    random_state, modes = torch.get_rng_state(), _modes()
    yield
    assert torch.equal(torch.get_rng_state(), random_state), f"{action} changed torch's random state"
    assert _modes() == modes, f"{action} changed torch's gradient mode, threads or default dtype"


@check()
def no_side_effects(subject: Subject) -> None:
    """Creating and calling do not change torch's random state, gradient mode, threads and default dtype."""
    shape = subject.shape(70)
    call = subject.draw(shape)
    with keep_global_state("creating it"):
        attn = subject.make(shape)
    with keep_global_state("a call"):
        for mask in subject.plain_masks:
            call.under(mask).run(attn)


@check(needs="deterministic")
def determinism(subject: Subject) -> None:
    """Equal calls give equal bits, and equal seeds give equal instances, independently of torch's global seed."""
    shape = subject.shape(130)
    call, attn = subject.draw(shape), subject.make(shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        twin = subject.make(shape)
    for mask in subject.plain_masks:
        masked = call.under(mask)
        want = masked.run(attn)
        assert_same(masked.run(attn), want, "the same call again")
        assert_same(masked.run(twin), want, "another instance of the same seed")


def _unclaimed(subject: Subject) -> Iterator[tuple[str, Call]]:
    """Calls over 6 positions with features that the traits do not declare, and their names."""
    traits, call = subject.traits, subject.draw(subject.shape(6))
    plain = subject.mask()
    if not traits.causal:
        yield "a causal mask", call.under(Mask(causal=True))
    if not traits.bidirectional:
        yield "a mask that is not causal", call.under(Mask())
    if not traits.padding:
        yield "key_lengths", call.under(Mask(causal=plain.causal, key_lengths=subject.lengths(6, 3)))
        yield "key_mask", call.under(subject.mask(key_mask=subject.holes(subject.shape(6))))
    if not traits.cross:
        yield "N < M", replace(call, tensors={**call.tensors, "q": call["q"][:, :, :2]})
        yield "query_start", call.under(subject.mask(query_start=2))
    if not traits.grouped and subject.attn.kv_heads is None:
        fewer = {name: x[:, :1] if call.sides[name] == "key" else x for name, x in call.tensors.items()}
        yield "grouped heads", replace(call, tensors=fewer)
    if not traits.gradient:
        yield "inputs that require a gradient", call.leaves()
    if "cu_seqlens" not in subject.attn.known_mask_fields:
        yield "cu_seqlens", call.under(subject.mask(cu_seqlens=subject.lengths(0, 6)))
    for dtype in TOLERANCES:
        if reason := subject.attn.why_not_dtype(dtype):
            yield reason, call.change(lambda x, d=dtype: x.to(d))
    yield "an unknown mask field", call.under(LaterMask(plain.causal, segments=subject.lengths(1, 2)))


@check()
def refusals(subject: Subject) -> None:
    """Features that the traits do not declare raise `UnsupportedError` instead of being ignored or emulated."""
    attn = subject.make(subject.shape(6))
    for label, call in _unclaimed(subject):
        with expect_error(UnsupportedError, label):
            call.run(attn)
    with expect_error(UnsupportedError, "a backend that does not exist"):
        subject.attn.backend = "no_such_backend"
    for backend in subject.attn.backends:
        if subject.attn.why_not(backend):
            with expect_error(UnsupportedError, f"backend {backend}, which is not available"):
                subject.attn.backend = backend


def _misfits(subject: Subject, call: Call) -> Iterator[tuple[str, Call]]:
    """Calls with invalid arguments, and what is wrong with them."""
    q, k = call["q"], call["k"]
    yield "q without a batch dimension", call.with_(q=q[0])
    yield "k of another width", call.with_(k=k[..., :-1])
    yield "k of another batch size", call.with_(k=k[:1])
    yield "k of another dtype", call.with_(k=k.half() if k.dtype != torch.float16 else k.float())
    yield "integer tensors", call.change(lambda x: x.long())
    yield "another key input", call.with_(no_such_input=k)
    yield "query_lengths beyond N", call.under(subject.mask(query_lengths=subject.lengths(6, 7)))
    yield "query_lengths of another batch size", call.under(subject.mask(query_lengths=subject.lengths(6)))
    if "v" in call.tensors:
        yield "v of another length", call.with_(v=call["v"][:, :, 1:])
    if subject.heads > 1:
        more_heads = call.change(lambda x: torch.cat([x, x[:, :1]], 1), "query")
        yield "query heads that are no multiple of key-value heads", more_heads
    if subject.traits.padding:
        yield "key_lengths beyond M", call.under(subject.mask(key_lengths=subject.lengths(7, 6)))
        yield "negative key_lengths", call.under(subject.mask(key_lengths=subject.lengths(-1, 6)))
        yield "a key_mask of another length", call.under(subject.mask(key_mask=subject.holes(subject.shape(5))))
    for name in subject.traits.inputs:
        yield f"without {name}", Call({n: x for n, x in call.tensors.items() if n != name}, call.sides, call.mask)


@check()
def misfits(subject: Subject) -> None:
    """Invalid shapes, dtypes and lengths raise `UsageError`."""
    call = subject.draw(subject.shape(6))
    attn = subject.make(subject.shape(6))
    for label, bad in _misfits(subject, call):
        with expect_error(UsageError, label):
            bad.run(attn)


@check()
def no_mutation(subject: Subject) -> None:
    """A call changes none of its inputs or mask tensors, with and without gradients."""
    shape = subject.shape(130)
    fields = {"query_lengths": subject.lengths(130, 100)}
    if subject.traits.padding:
        fields |= {"key_lengths": subject.lengths(120, 60), "key_mask": subject.holes(shape)}
    for mask in [subject.mask(), subject.mask(**fields), *subject.plain_masks]:
        for graph in (False, True) if subject.traits.gradient else (False,):
            call = subject.draw(shape, mask=mask)
            tensors = {**call.tensors, **{f: getattr(mask, f) for f in mask.used if f in fields}}
            before = {name: x.clone() for name, x in tensors.items()}
            with torch.set_grad_enabled(graph):
                out = call.change(lambda x, g=graph: x.requires_grad_(g)).run(subject.make(shape))
            if graph:
                out.sum().backward()
            for name, x in before.items():
                assert_same(tensors[name], x, f"{name} after a call, {describe(mask)}")


@check()
def memory_layout(subject: Subject) -> None:
    """Transposed, sliced and expanded inputs give the same result as contiguous ones."""
    shape = subject.shape(70)
    attn, call = subject.make(shape), subject.draw(shape)
    for mask in subject.masks(shape):
        want = call.under(mask).run(attn)
        for label, layout in (
            ("[B, N, H, D] in memory", lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)),
            ("every other column of a wider tensor", lambda x: torch.stack([x, x + 1], -1)[..., 0]),
            ("a slice of a longer tensor", lambda x: torch.cat([x + 1, x], 2)[:, :, x.shape[2] :]),
        ):
            assert_close(call.under(mask).change(layout).run(attn), want, f"{label}, {describe(mask)}")
    alone = call.change(lambda x: x[:1].expand(2, *x.shape[1:])).run(attn)
    assert_close(alone[1], alone[0], "one row expanded to a batch of two")


@check()
def aliased_inputs(subject: Subject) -> None:
    """Passing one tensor as q, k and v gives the result of three equal tensors, and the sum of their gradients."""
    shape = subject.shape(70)
    if shape.kv_heads != shape.heads or "v" not in subject.draw(shape).tensors:
        return
    attn, call = subject.make(shape), subject.draw(shape)
    x = call["q"]
    for mask in subject.masks(shape):
        aliased, separate = call.with_(k=x, v=x).under(mask), call.with_(k=x.clone(), v=x.clone()).under(mask)
        if call.shares_qk:
            separate = separate.with_(k=x, v=x.clone())
        assert_close(aliased.run(attn), separate.run(attn), f"q is k is v, {describe(mask)}")
        if subject.traits.gradient:
            (_, got), (_, want) = aliased.gradients(attn), separate.gradients(attn)
            total = want["v"] + want["q"] + (0 if call.shares_qk else want["k"])
            assert_close(got["q"], total, f"gradient by q is k is v, {describe(mask)}")


@check()
def state_dict(subject: Subject) -> None:
    """A state dict contains everything random: loading it makes an instance with another seed equal."""
    shape = subject.shape(130)
    call, attn, other = subject.draw(shape), subject.make(shape), subject.make(shape, seed=1)
    other.load_state_dict(attn.state_dict())
    for mask in subject.plain_masks:
        masked = call.under(mask)
        subject.assert_alike(masked.run(other), masked.run(attn), f"after load_state_dict, {describe(mask)}")


def _no_pairs(subject: Subject) -> str | None:
    attn = subject.make(subject.shape(4))
    uncounted = all(attn.pairs(4, 4, causal) is None for causal in subject.causalities)
    return "pairs() returns None" if uncounted else no_values(subject)


@check(skip_reason=_no_pairs)
def pair_counts(subject: Subject) -> None:
    """pairs() is the number of the reference's nonzero weights, and pairs_computed() is not smaller."""
    for n, m in [(1, 1), (17, 17), (150, 150)] + [(17, 130), (130, 17)] * subject.traits.cross:
        attn = subject.make(subject.shape(n, m))
        for causal in subject.causalities:
            declared, computed = attn.pairs(n, m, causal), attn.pairs_computed(n, m, causal)
            visible = (weights(subject, n, m, Mask(causal=causal), oracle=True) != 0).sum((2, 3))
            low, high = int(visible.min()), int(visible.max())
            label = f"N={n}, M={m}, causal={causal}"
            assert declared == low == high, f"{label}: pairs() is {declared}, nonzero weights {low} to {high}"
            assert computed is None or computed >= low, f"{label}: {computed} pairs computed of {low}"


@check(skip_reason=lambda s: None if s.attn.spec else "it was created by a factory, not from a spec")
def spec_round_trip(subject: Subject) -> None:
    """An instance's spec creates an equal instance, with all options."""
    attn = subject.attn
    again = create(attn.spec, dims=attn.dims)
    assert again.spec == attn.spec, f"{attn.spec!r} became {again.spec!r}"
    options, options_again = attn.origin.options, again.origin.options
    assert options == options_again, f"{attn.spec!r}: options {options} became {options_again}"
    assert again.backend == attn.backend, f"{attn.spec!r}: backend {attn.backend} became {again.backend}"
    assert attn.traits == again.traits, f"{attn.spec!r}: the traits changed"
