"""Probe a mechanism before it is checked: the capacity of its state, what it accepts, what its reference costs."""

from __future__ import annotations

import timeit
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import torch

from ..contract.decode_state import state_bytes
from ..contract.shapes import Shape
from ..errors import UnsupportedError, UsageError
from ..spec import Spec
from .subject import Subject

FAR = 2**20  # a state of the same size for so many positions and for half of them does not grow
PATIENCE_S = 5.0  # longest time of one reference result


class StateCapacity(NamedTuple):
    """How many positions a decode state stores before it drops some; None if unknown, with the reason."""

    positions: int | None
    why: str = ""


@lru_cache(maxsize=64)
def find_room(subject: Subject) -> StateCapacity:
    """From the state's bytes at growing lengths, on torch's meta device, where they need no memory."""
    attn = subject.make(subject.shape(4, batch=1))

    def size(positions: int) -> int:
        return state_bytes(attn.init_state(1, positions, subject.dtype, "meta"))

    try:
        near, half, far = size(1), size(FAR // 2), size(FAR)
    except Exception as error:
        return StateCapacity(None, f"the capacity of its state is unknown ({type(error).__name__})")
    if near == far:
        return StateCapacity(None, "the capacity of its state is unknown: its bytes do not depend on max_len")
    if half < far:
        return StateCapacity(None, "its state stores every position")
    return StateCapacity(bisect_left(range(1, FAR), far, key=size) + 1)


@lru_cache(maxsize=64)
def takes_many(subject: Subject) -> bool:
    """Whether one step accepts several positions."""
    shape = subject.shape(2, batch=1)
    attn, call = subject.make(shape), subject.draw(shape)
    try:
        call.step(attn, attn.init_state(1, 8, subject.dtype, subject.device))
    except (UsageError, UnsupportedError):
        return False
    return True


@lru_cache(maxsize=64)
def _pace(subject: Subject) -> float:
    """Seconds of the reference for one pair of a query and a key of one head, from its fastest call over 130 positions.

    Of several calls, because other programs may disturb one, so that checks would be left out.
    """
    shape = subject.shape(130, batch=1)
    attn, call = subject.oracle(shape), subject.draw(shape)
    with torch.no_grad():
        fastest = min(timeit.repeat(lambda: call.run(attn), number=1, repeat=4))
    return fastest / (130 * 130 * shape.heads)


def too_slow(subject: Subject, shape: Shape) -> str | None:
    """Why the reference is too slow for these sizes; None if it is not."""
    expected = _pace(subject) * shape.batch * shape.heads * shape.n * shape.m
    if expected <= PATIENCE_S:
        return None
    return f"its reference is slow, N={shape.n} over M={shape.m} would take it about {expected:.0f} s: left out"


def refuses_shape(subject: Subject, shape: Shape) -> str | None:
    """Why the mechanism cannot be created for these sizes; None when it can."""
    try:
        subject.make(shape)
    except (UsageError, UnsupportedError) as error:
        return str(error)
    return None


def other_instances(subject: Subject) -> Iterator[Subject]:
    """The same mechanism with another value of one of its options, for each option that changes results."""
    if subject.others is not None:
        yield from subject.others
        return
    spec = subject.attn.origin.spec
    if not isinstance(subject.source, str) or not isinstance(spec, Spec):
        return
    shape = subject.shape(33)
    call = subject.draw(shape)
    with torch.no_grad():
        expected = call.run(subject.oracle(shape))
        for name, value in subject.attn.origin.options.items():
            for other in _other_values(value):
                with suppress(UsageError, UnsupportedError):
                    spec_text = str(Spec(spec.name, {**spec.options, name: other}, spec.backend))
                    subject_of_other = Subject(
                        spec_text, backend=subject.backend, device=subject.device, dtype=subject.dtype
                    )
                    if not torch.equal(call.run(subject_of_other.oracle(shape)), expected):
                        yield subject_of_other
                        break


def _other_values(value: object) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (3, 2, value + 1)
    if value is None:
        return 3, 2
    return (value * 2,) if isinstance(value, float) else ()
