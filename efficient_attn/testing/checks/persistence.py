"""Pickling, saving and copying give the same mechanism, and states that continue."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from ...contract.mask import Mask
from ..check import check
from ..subject import Subject
from ..tensor_comparison import describe

T = TypeVar("T")


def _pickled(x: T) -> T:
    return pickle.loads(pickle.dumps(x))


def _saved(x: T) -> T:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


WAYS: dict[str, Callable] = {"pickle": _pickled, "torch.save": _saved, "copy.deepcopy": copy.deepcopy}


def _again(x: T, label: str) -> Iterator[tuple[str, T]]:
    """The copies, by every method."""
    for way, go in WAYS.items():
        try:
            yield f"{label}, {way}", go(x)
        except Exception as error:
            raise AssertionError(f"{label}, {way}: {type(error).__name__}: {error}") from error


@check()
def pickles(subject: Subject) -> None:
    """Pickled, saved or copied, when new and after calls, it gives the same bits and the same description."""
    shape = subject.shape(70)
    attn, call = subject.make(shape), subject.draw(shape)
    calls = [call.under(Mask(causal=causal)) for causal in subject.causalities]
    for when in ("when new", "after calls"):
        twins = list(_again(attn, f"the mechanism {when}"))
        for c in calls:
            want = c.run(attn)
            for label, twin in twins:
                subject.assert_alike(c.run(twin), want, f"{label}, {describe(c.mask)}")
        for label, twin in twins:
            for name in ("label", "backend", "dims", "seed", "traits", "dropout", "training"):
                assert getattr(twin, name) == getattr(attn, name), f"{label}: it came back with another {name}"
        if subject.traits.gradient:
            call.leaves().run(attn)


@check(needs="decode")
@torch.no_grad()
def states_pickle(subject: Subject) -> None:
    """A decode state that is pickled, saved or copied continues with the same bits.

    Without gradients: torch does not copy tensors that require them, such as those that a learned map computes from
    keys.
    """
    shape = subject.shape(12)
    attn, call = subject.make(shape), subject.draw(shape, mask=Mask(causal=True))
    state = attn.init_state(2, 12, subject.dtype, subject.device)
    for at in range(9):
        _, state = call.both(slice(at, at + 1)).step(attn, state)
    twins = list(_again(state, "a state after 9 positions"))
    for at in (slice(9, 10), slice(10, 11), slice(11, 12)):
        want, state = call.both(at).step(attn, state)
        for place, (label, twin) in enumerate(twins):
            got, twin = call.both(at).step(attn, twin)
            twins[place] = label, twin
            subject.assert_alike(got, want, f"{label}, position {at.start}")


CHECKS = (pickles, states_pickle)
