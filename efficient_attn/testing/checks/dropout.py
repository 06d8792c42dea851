"""Dropout of attention weights is implemented as the trait declares, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from ...contract.mechanism import Attention
from ...contract.shapes import Shape
from ...errors import UnsupportedError
from ..check import check
from ..probing import takes_many
from ..subject import Call, Subject
from ..tensor_comparison import Refusal, assert_close, assert_same, describe
from .algebra import has_values
from .reference import no_differences

P = 0.25
DRAWS = 200
SIGMAS = 6  # tolerance of a mean of random draws: exceeded once in 10^9


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's generators at a seed of ours; afterwards they are as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _instances(subject: Subject, shape: Shape) -> Iterator[tuple[str, Attention]]:
    """One for each backend that is there, with its name."""
    for backend in (*subject.backends_for(subject.dtype), "dense"):
        attn = subject.make(shape, backend=backend)
        yield attn.backend, attn


def _dropping(subject: Subject, shape: Shape) -> Iterator[tuple[str, Attention]]:
    """Mechanisms that declare dropout, with it."""
    for backend, attn in _instances(subject, shape):
        if attn.traits.dropout:
            attn.dropout = P
            yield backend, attn


@check()
def dropout_is_never_ignored(subject: Subject) -> None:
    """Dropout that the traits do not declare is refused, when it is set and in calls; evaluation drops nothing."""
    shape = subject.shape(16)
    call = subject.draw(shape)
    for backend, attn in _instances(subject, shape):
        want = call.run(attn)
        if attn.traits.dropout:
            attn.dropout = P
        else:
            with Refusal(UnsupportedError, f"{backend}: dropout"):
                attn.dropout = P
            attn._dropout = P  # as where it was set before the backend was
            with Refusal(UnsupportedError, f"{backend}: a call with dropout in training"):
                call.run(attn)
            if attn.traits.decode:
                with Refusal(UnsupportedError, f"{backend}: a step with dropout in training"):
                    call.step(attn, attn.init_state(2, 16, subject.dtype, subject.device))
        subject.assert_alike(call.run(attn.eval()), want, f"{backend}: dropout of {P} in evaluation")


def _probes(subject: Subject) -> Iterator[tuple[Shape, Call]]:
    """Calls with the identity twice as values, so that their outputs are the weights, twice."""
    groups = {subject.heads, 2 if subject.traits.grouped else subject.heads}
    for n, m in [(40, 40)] + [(1, 130), (300, 40)] * subject.traits.cross:
        for kv_heads in {subject.attn.kv_heads or h for h in groups}:
            shape = subject.shape(n, m, kv_heads=kv_heads, value_dim=2 * m)
            call = subject.draw(shape)
            yield shape, call.with_(v=torch.eye(m).repeat(1, 2).to(call["v"]).expand(call["v"].shape))


@check(needs="dropout", ask=has_values)
def dropout_drops_weights(subject: Subject) -> None:
    """In training each weight is dropped independently with that probability, or divided by the probability of being
    kept."""
    for shape, probe in _probes(subject):
        for mask in subject.masks(shape):
            call = probe.under(mask)
            want = call.run(subject.oracle(shape))
            for backend, attn in _dropping(subject, shape):
                label = f"{backend}, N={shape.n}, M={shape.m}, {shape.kv_heads} key-value heads, {describe(mask)}"
                with seeded(1), torch.no_grad():
                    first, second = call.run(attn), call.run(attn)
                with seeded(1):
                    subject.assert_alike(call.leaves().run(attn), first, f"{label}: the same seed, on a graph")
                _check_dropped(first, want, label)
                assert not torch.equal(first, second), f"{label}: every call drops the same weights"


def _check_dropped(got: Tensor, want: Tensor, label: str) -> None:
    """Weights ``[B, H, N, 2 M]`` of one draw, each of them twice, compared with those without dropout."""
    (got, again), (want, _) = got.chunk(2, -1), want.chunk(2, -1)
    assert_same(got, again, f"{label}: a weight and the same weight again")
    dropped, nonzero = (got == 0) & (want != 0), want != 0
    assert_close(got, (want / (1 - P)).masked_fill(dropped, 0), f"{label}: the weights that are left")
    if not (count := int(nonzero.sum())):
        return
    share, spread = int(dropped.sum()) / count, (P * (1 - P) / count) ** 0.5
    assert abs(share - P) <= SIGMAS * spread, f"{label}: {share:.3f} of {count} weights dropped, expected {P}"
    both = nonzero[:, :1] & nonzero[:, 1:]
    if int(both.sum()) > 1000:  # fewer may coincide by chance
        alike = (dropped[:, :1] == dropped[:, 1:])[both].double().mean().item()
        assert alike < 0.9, f"{label}: heads drop the same weights ({alike:.2f} of them)"


@check(needs="dropout")
def dropout_mean(subject: Subject) -> None:
    """The mean over many draws is the output without dropout, of calls and of decode steps; a single draw is not."""
    shape = subject.shape(9)
    call = subject.draw(shape)
    want = call.run(subject.oracle(shape))
    for backend, attn in _dropping(subject, shape):
        with seeded(2), torch.no_grad():
            _check_mean(torch.stack([call.run(attn) for _ in range(DRAWS)]), want, f"{backend}, calls")
            if subject.traits.decode and takes_many(subject):
                steps = [call.step(attn, attn.init_state(2, 9, subject.dtype, subject.device))[0] for _ in range(DRAWS)]
                causal = call.under(subject.mask(causal=True)).run(subject.oracle(shape))
                _check_mean(torch.stack(steps), causal, f"{backend}, steps")


def _check_mean(draws: Tensor, want: Tensor, label: str) -> None:
    off = (draws.mean(0) - want).abs()
    allowed = SIGMAS * draws.std(0) / DRAWS**0.5 + 1e-9
    worst = (off / allowed).max().item()
    assert worst <= 1, f"{label}: the mean of {DRAWS} draws is {worst * SIGMAS:.1f} standard errors off"
    assert (draws != want).any(), f"{label}: nothing is ever dropped"


@check(needs="dropout gradient", ask=no_differences)
def dropout_gradients(subject: Subject) -> None:
    """With the same seed, gradients agree with finite differences."""
    shape = subject.shape(3, batch=1, head_dim=2, value_dim=2)
    call = subject.draw(shape).leaves()
    names = [name for name in call.tensors if not (call.tied and name == "k")]
    for backend, attn in _dropping(subject, shape):

        def function(*values: Tensor, attn: Attention = attn) -> Tensor:
            with seeded(3):
                return call.with_(**dict(zip(names, values, strict=True))).run(attn)

        try:
            torch.autograd.gradcheck(function, [call[name] for name in names], atol=1e-6, rtol=1e-4)
        except GradcheckError as error:
            raise AssertionError(f"{backend}: {' '.join(str(error).split())[:300]}") from error


CHECKS = (dropout_is_never_ignored, dropout_drops_weights, dropout_mean, dropout_gradients)
