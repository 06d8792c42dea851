"""Outputs, refusals, side effects, seeds, and pair counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from operator import attrgetter

import torch
from torch import Tensor

from ...contract.mask import Mask
from ...contract.mechanism import Attention
from ...errors import UnsupportedError, UsageError
from ...instruments.global_state import GlobalStateChanged, watch_global_state
from ...registry import create
from ..check import check
from ..mechanism_call import Call
from ..subject import Subject
from ..tensor_comparison import (
    TOLERANCES,
    assert_close,
    assert_finite,
    assert_same,
    describe,
    expect_error,
    find_largest_value,
)
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
        attn, call = subject.prepare(n, m, value_dim=5)
        if subject.traits.gradient:
            call = call.leaves()
        out = call.run(attn)
        label = f"output for N={n}, M={m}"
        assert type(out) is Tensor, f"{label}: a {type(out).__name__}, expected a torch.Tensor"
        for name, got, want in (
            ("shape", list(out.shape), [*call["q"].shape[:3], 5]),
            ("dtype", out.dtype, subject.dtype),
            ("device", out.device, call["q"].device),
            ("requires_grad", out.requires_grad, subject.traits.gradient),
        ):
            assert got == want, f"{label}: {name} {got}, expected {want}"
        assert_finite(out.detach(), label)
        for name, x in call.tensors.items():
            shared = out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            assert not shared, f"{label}: shares its memory with {name}"


@contextmanager
def _keep_global_state(action: str) -> Iterator[None]:
    """Raise `AssertionError` if the block changes torch's random state or settings. action: of the block."""
    try:
        with watch_global_state(replacements=False):
            yield
    except GlobalStateChanged as error:
        raise AssertionError(f"{action}: {error}") from error


@check()
def no_side_effects(subject: Subject) -> None:
    """Creating, calls, backward passes and decode steps change neither torch's random state nor its settings."""
    shape = subject.shape(70)
    drawn = subject.draw(shape)
    with _keep_global_state("creating it"):
        attn = subject.make(shape)
    for call in subject.under_masks(drawn):
        with _keep_global_state(f"a call, {describe(call.mask)}"):
            call.run(attn)
        if subject.traits.gradient:
            with _keep_global_state(f"a backward pass, {describe(call.mask)}"):
                call.gradients(attn)
    if subject.traits.decode:
        state = attn.init_state(2, 70, subject.dtype, subject.device)
        with _keep_global_state("a decode step"):
            drawn.both(slice(0, 1)).step(attn, state)


def evaluate_all(subject: Subject, attn: Attention, call: Call) -> dict[str, Tensor]:
    """The outputs of a call and of two decode steps, and the gradients, as far as the traits declare them."""
    return subject.evaluate(call, attn) | run_two_steps(subject, attn, call)


def run_two_steps(subject: Subject, attn: Attention, call: Call) -> dict[str, Tensor]:
    """The outputs of two decode steps by name; none of a mechanism that cannot decode."""
    if not subject.traits.decode:
        return {}
    state = attn.init_state(2, 2, subject.dtype, subject.device)
    return {f"step {at.start}": out for at, out, _ in call.steps(attn, state, (1, 1))}


@check(needs="deterministic")
def determinism(subject: Subject) -> None:
    """Equal calls, backward passes and decode steps give equal bits, and equal seeds give equal instances,
    independently of torch's global seed."""
    for n in (72, 300):
        attn, drawn = subject.prepare(n)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(12345)
            twin = subject.make(subject.shape(n))
        for call in map(drawn.under, subject.plain_masks):
            want = evaluate_all(subject, attn, call)
            for other, label in ((attn, "the same call again"), (attn, "a third call"), (twin, "an equal instance")):
                for name, got in evaluate_all(subject, other, call).items():
                    assert_same(got, want[name], f"{name} of {label}, N={n}, {describe(call.mask)}")


def _unclaimed(subject: Subject) -> Iterator[tuple[str, Call]]:
    """Calls over 6 positions with features that the traits do not declare, and their names."""
    traits, call = subject.traits, subject.draw(subject.shape(6))
    plain = subject.mask()
    if not traits.causal:
        yield "a causal mask", call.under(Mask(causal=True))
    if not traits.bidirectional:
        yield "a mask that is not causal", call.under(Mask())
    if not traits.padding:
        yield "key_lengths", call.under(subject.mask(key_lengths=subject.lengths(6, 3)))
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
    if not subject.traits.decode:
        with expect_error(UnsupportedError, "init_state without the decode trait"):
            attn.init_state(2, 8)
    for backend in ("no_such_backend", *filter(attn.why_not, attn.backends)):
        with expect_error(UnsupportedError, f"backend {backend}, which is not available"):
            attn.backend = backend


def _misfits(subject: Subject) -> Iterator[tuple[str, Call]]:
    """Calls over 6 positions with invalid arguments, and what is wrong with them."""
    call = subject.draw(subject.shape(6))
    q, k = call["q"], call["k"]
    yield "q without a batch dimension", call.with_(q=q[0])
    yield "k of another width", call.with_(k=k[..., :-1])
    yield "k of another batch size", call.with_(k=k[:1])
    yield "k of another dtype", call.with_(k=k.half() if k.dtype != torch.float16 else k.float())
    yield "integer tensors", call.change(lambda x: x.long())
    yield "another key input", call.with_(no_such_input=k)
    yield "query_lengths of another batch size", call.under(subject.mask(query_lengths=subject.lengths(6)))
    # on a GPU an assertion in a kernel refuses such lengths, after which the process can use the device no more
    read_lengths = torch.device(subject.device).type == "cpu"
    if read_lengths:
        yield "query_lengths beyond N", call.under(subject.mask(query_lengths=subject.lengths(6, 7)))
    if "v" in call.tensors:
        yield "v of another length", call.with_(v=call["v"][:, :, 1:])
    if subject.heads > 1:
        more_heads = call.change(lambda x: torch.cat([x, x[:, :1]], 1), "query")
        yield "query heads that are no multiple of key-value heads", more_heads
    if subject.traits.padding and read_lengths:
        yield "key_lengths beyond M", call.under(subject.mask(key_lengths=subject.lengths(7, 6)))
        yield "negative key_lengths", call.under(subject.mask(key_lengths=subject.lengths(-1, 6)))
    if subject.traits.padding:
        yield "a key_mask of another length", call.under(subject.mask(key_mask=subject.holes(subject.shape(5))))
    for name in subject.traits.inputs:
        yield f"without {name}", replace(call, tensors={n: x for n, x in call.tensors.items() if n != name})


@check()
def misfits(subject: Subject) -> None:
    """Invalid shapes, dtypes and lengths raise `UsageError`."""
    attn = subject.make(subject.shape(6))
    for label, call in _misfits(subject):
        with expect_error(UsageError, label):
            call.run(attn)


@check()
def no_mutation(subject: Subject) -> None:
    """A call changes none of its inputs or mask tensors, with and without gradients."""
    shape = subject.shape(130)
    fields = {"query_lengths": subject.lengths(130, 100)}
    if subject.traits.padding:
        fields |= {"key_lengths": subject.lengths(120, 60), "key_mask": subject.holes(shape)}
    for mask in [subject.mask(), subject.mask(**fields), *subject.plain_masks]:
        for graph in (False, True) if subject.traits.gradient else (False,):
            attn, call = subject.prepare(130, mask=mask)
            tensors = {**call.tensors, **{f: getattr(mask, f) for f in mask.used if f in fields}}
            before = {name: x.clone() for name, x in tensors.items()}
            with torch.set_grad_enabled(graph):
                out = call.change(lambda x, g=graph: x.requires_grad_(g)).run(attn)
            if graph:
                out.sum().backward()
            for name, x in before.items():
                assert_same(tensors[name], x, f"{name} after a call, {describe(mask)}")


@check()
def memory_layout(subject: Subject) -> None:
    """Transposed, sliced and expanded inputs give the same result as contiguous ones."""
    attn, drawn = subject.prepare(70)
    for call in subject.under_masks(drawn):
        want = call.run(attn)
        for label, layout in (
            ("[B, N, H, D] in memory", lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)),
            ("every other column of a wider tensor", lambda x: torch.stack([x, x + 1], -1)[..., 0]),
            ("a slice of a longer tensor", lambda x: torch.cat([x + 1, x], 2)[:, :, x.shape[2] :]),
        ):
            assert_close(call.change(layout).run(attn), want, f"{label}, {describe(call.mask)}")
    alone = drawn.change(lambda x: x[:1].expand(2, *x.shape[1:])).run(attn)
    assert_close(alone[1], alone[0], "one row expanded to a batch of two")


@check()
def aliased_inputs(subject: Subject) -> None:
    """Passing one tensor as q, k and v gives the result of three equal tensors, and the sum of their gradients."""
    attn, drawn = subject.prepare(70)
    x = drawn["q"]
    if "v" not in drawn.tensors or x.shape != drawn["v"].shape:
        return
    for call in subject.under_masks(drawn):
        aliased, separate = call.with_(k=x, v=x), call.with_(k=x.clone(), v=x.clone())
        if call.shares_qk:
            separate = separate.with_(k=x, v=x.clone())
        assert_close(aliased.run(attn), separate.run(attn), f"q is k is v, {describe(call.mask)}")
        if subject.traits.gradient:
            (_, got), (_, want) = aliased.gradients(attn), separate.gradients(attn)
            total = want["v"] + want["q"] + (0 if call.shares_qk else want["k"])
            label = f"gradient by q is k is v, {describe(call.mask)}"
            assert_close(got["q"], total, label, summed=find_largest_value(want.values()))


@check()
def state_dict(subject: Subject) -> None:
    """A state dict contains everything random: loading it makes an instance with another seed equal."""
    attn, drawn = subject.prepare(130)
    other = subject.make(subject.shape(130), seed=1)
    other.load_state_dict(attn.state_dict())
    for call in map(drawn.under, subject.plain_masks):
        subject.assert_alike(call.run(other), call.run(attn), f"after load_state_dict, {describe(call.mask)}")


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
    for name in ("spec", "origin.options", "backend", "traits"):
        before, after = attrgetter(name)(attn), attrgetter(name)(again)
        assert before == after, f"{attn.spec!r}: {name} {before} became {after}"
