"""Dropout of attention weights: it is implemented if the traits declare it, and refused otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ...contract.mechanism import Attention
from ...contract.shapes import Shape
from ...errors import UnsupportedError
from ..check import check
from ..mechanism_call import Call
from ..probing import accepts_chunks
from ..subject import Subject
from ..tensor_comparison import assert_close, assert_same, describe, expect_error
from .algebra import no_values
from .reference import compare_with_differences, no_finite_differences

P = 0.25
DRAWS = 200
SIGMAS = 6  # tolerance of a mean of random draws, which is exceeded once in 10^9


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators inside the block, and restore their states after it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _instances(subject: Subject, shape: Shape, *, dropping: bool) -> Iterator[tuple[str, Attention]]:
    """Yield an instance of each available backend, with its name. dropping: only those with dropout, which is set."""
    for backend in (*subject.backends_for(subject.dtype), "dense"):
        attn = subject.make(shape, backend=backend)
        if dropping and attn.traits.dropout:
            attn.dropout = P
        if attn.traits.dropout or not dropping:
            yield attn.backend, attn


@check()
def dropout_is_never_ignored(subject: Subject) -> None:
    """Undeclared dropout raises `UnsupportedError` when it is set and in calls; evaluation mode drops nothing."""
    shape = subject.shape(16)
    call = subject.draw(shape)
    for backend, attn in _instances(subject, shape, dropping=False):
        want = call.run(attn)
        if attn.traits.dropout:
            attn.dropout = P
        else:
            with expect_error(UnsupportedError, f"{backend}: dropout"):
                attn.dropout = P
            attn._dropout = P  # as if it had been set with another backend
            with expect_error(UnsupportedError, f"{backend}: a call with dropout in training"):
                call.run(attn)
            if attn.traits.decode:
                with expect_error(UnsupportedError, f"{backend}: a step with dropout in training"):
                    call.step(attn, attn.init_state(2, 16, subject.dtype, subject.device))
        subject.assert_alike(call.run(attn.eval()), want, f"{backend}: dropout of {P} in evaluation")


def _probes(subject: Subject) -> Iterator[tuple[Shape, Call]]:
    """Yield calls with two concatenated identity matrices as values, whose outputs are the weights, twice."""
    for n, m in [(40, 40)] + [(1, 130), (300, 40)] * subject.traits.cross:
        for kv_heads in {subject.attn.kv_heads or h for h in subject.kv_head_counts}:
            shape = subject.shape(n, m, kv_heads=kv_heads, value_dim=2 * m)
            call = subject.draw(shape)
            yield shape, call.with_(v=torch.eye(m).repeat(1, 2).to(call["v"]).expand(call["v"].shape))


@check(needs="dropout", skip_reason=no_values)
def dropout_drops_weights(subject: Subject) -> None:
    """In training, each weight is dropped independently with the probability p, or divided by 1 - p."""
    for shape, probe in _probes(subject):
        for mask in subject.masks(shape):
            call = probe.under(mask)
            want = call.run(subject.oracle(shape))
            for backend, attn in _instances(subject, shape, dropping=True):
                label = f"{backend}, N={shape.n}, M={shape.m}, {shape.kv_heads} key-value heads, {describe(mask)}"
                with seeded(1), torch.no_grad():
                    first, second = call.run(attn), call.run(attn)
                with seeded(1):
                    subject.assert_alike(call.leaves().run(attn), first, f"{label}: the same seed, with gradients")
                _check_dropped(first, want, label)
                assert not torch.equal(first, second), f"{label}: every call drops the same weights"


def _check_dropped(got: Tensor, want: Tensor, label: str) -> None:
    """Compare the weights ``[B, H, N, 2 M]`` of one draw, which has them twice, with those without dropout."""
    (got, again), (want, _) = got.chunk(2, -1), want.chunk(2, -1)
    assert_same(got, again, f"{label}: the two copies of the weights")
    dropped, nonzero = (got == 0) & (want != 0), want != 0
    assert_close(got, (want / (1 - P)).masked_fill(dropped, 0), f"{label}: the weights that are not dropped")
    if not (count := int(nonzero.sum())):
        return
    share, spread = int(dropped.sum()) / count, (P * (1 - P) / count) ** 0.5
    assert abs(share - P) <= SIGMAS * spread, f"{label}: {share:.3f} of {count} weights dropped, expected {P}"
    both = nonzero[:, :1] & nonzero[:, 1:]
    if int(both.sum()) > 1000:  # fewer may be equal by chance
        alike = (dropped[:, :1] == dropped[:, 1:])[both].double().mean().item()
        assert alike < 0.9, f"{label}: heads drop the same weights ({alike:.2f} of them)"


@check(needs="dropout")
def dropout_mean(subject: Subject) -> None:
    """The mean of many draws is the output without dropout, for calls and decode steps; single draws differ."""
    shape = subject.shape(9)
    call = subject.draw(shape)
    want = call.run(subject.oracle(shape))
    for backend, attn in _instances(subject, shape, dropping=True):
        with seeded(2), torch.no_grad():
            _check_mean(torch.stack([call.run(attn) for _ in range(DRAWS)]), want, f"{backend}, calls")
            if subject.traits.decode and accepts_chunks(subject):
                steps = [call.step(attn, attn.init_state(2, 9, subject.dtype, subject.device))[0] for _ in range(DRAWS)]
                causal = call.under(subject.mask(causal=True)).run(subject.oracle(shape))
                _check_mean(torch.stack(steps), causal, f"{backend}, steps")


def _check_mean(draws: Tensor, want: Tensor, label: str) -> None:
    off = (draws.mean(0) - want).abs()
    allowed = SIGMAS * draws.std(0) / DRAWS**0.5 + 1e-9
    worst = (off / allowed).max().item()
    assert worst <= 1, f"{label}: the mean of {DRAWS} draws is {worst * SIGMAS:.1f} standard errors off"
    assert (draws != want).any(), f"{label}: no draw drops anything"


@check(needs="dropout gradient", skip_reason=no_finite_differences)
def dropout_gradients(subject: Subject) -> None:
    """With the same seed, gradients agree with finite differences."""
    shape = subject.shape(3, batch=1, head_dim=2, value_dim=2)
    call = subject.draw(shape).leaves()
    for backend, attn in _instances(subject, shape, dropping=True):

        def run(changed: Call, attn: Attention = attn) -> Tensor:
            with seeded(3):
                return changed.run(attn)

        compare_with_differences(run, call, backend)
