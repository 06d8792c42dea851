"""Pickled, saved and copied mechanisms and decode states give the same results as the originals."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import TypeVar

import torch

from ...contract.mask import Mask
from ..check import check
from ..subject import Subject
from ..tensor_comparison import describe

T = TypeVar("T")


def _pickle(x: T) -> T:
    return pickle.loads(pickle.dumps(x))


def _save(x: T) -> T:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


METHODS: dict[str, Callable] = {"pickle": _pickle, "torch.save": _save, "copy.deepcopy": copy.deepcopy}


def _copy(x: T, label: str) -> list[tuple[str, T]]:
    """A copy by every method, each with a label."""
    copies = []
    for method, copied in METHODS.items():
        try:
            copies.append((f"{label}, {method}", copied(x)))
        except Exception as error:
            raise AssertionError(f"{label}, {method}: {type(error).__name__}: {error}") from error
        assert copies[-1][1] is not x, f"{label}, {method}: it is the original itself; remove __deepcopy__"
    return copies


@check()
def pickles(subject: Subject) -> None:
    """A mechanism that is pickled, saved or copied, before and after calls, gives the same bits and attributes."""
    attn, drawn = subject.prepare(70)
    for time in ("before calls", "after calls"):
        copies = _copy(attn, f"the mechanism {time}")
        for call in map(drawn.under, subject.plain_masks):
            want = call.run(attn)
            for label, copied in copies:
                subject.assert_alike(call.run(copied), want, f"{label}, {describe(call.mask)}")
        for label, copied in copies:
            for name in ("label", "backend", "dims", "seed", "traits", "dropout", "training"):
                assert getattr(copied, name) == getattr(attn, name), f"{label}: its {name} changed"
        if subject.traits.gradient:
            drawn.leaves().run(attn)


@check(needs="decode")
@torch.no_grad()
def states_pickle(subject: Subject) -> None:
    """A decode state that is pickled, saved or copied continues with the same bits.

    Runs without gradients, because torch cannot copy tensors with a graph, such as keys that parameters project.
    """
    attn, call = subject.prepare(12, mask=Mask(causal=True))
    state = attn.init_state(2, 12, subject.dtype, subject.device)
    *_, (_, _, state) = call.steps(attn, state, (1,) * 9)
    copies = _copy(state, "a state after 9 positions")
    want = [out for _, out, _ in call.steps(attn, state, (1,) * 3, 9)]
    for label, copied in copies:
        for (at, got, _), expected in zip(call.steps(attn, copied, (1,) * 3, 9), want, strict=True):
            subject.assert_alike(got, expected, f"{label}, position {at.start}")
