"""Measure properties of a mechanism that checks depend on: state capacity, supported sizes, time of the reference."""

from __future__ import annotations

import re
import timeit
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import NamedTuple, get_args, get_type_hints

import torch

from ..contract.decode_state import state_bytes
from ..contract.mechanism import Attention
from ..contract.shapes import Shape
from ..errors import UnsupportedError, UsageError
from ..spec import Spec, parse
from .subject import Subject

MANY = 2**20  # a state that is equally large for this many positions and for half of them does not grow
SMALL = 16  # options above that are sizes
MAX_REFERENCE_S = 5.0  # largest expected time of a reference result


def declares_growth(attn: Attention) -> bool:
    """Whether a mechanism has a growth of its own."""
    return type(attn).growth is not Attention.growth


class StateCapacity(NamedTuple):
    """The number of positions that a decode state stores; None if it is unlimited or unknown, with the reason."""

    positions: int | None
    why: str = ""


@lru_cache(maxsize=64)
def has_signed_weights(subject: Subject) -> bool:
    """Whether weights have both signs, so that their sum may be nearly zero."""
    shape = subject.shape(4)
    tensors = dict(subject.draw(shape).tensors)
    q, k, v = tensors.pop("q"), tensors.pop("k"), tensors.pop("v", None)
    return subject.make(shape).clamped_rows(q, k, v, subject.mask(), **tensors) is not None


@lru_cache(maxsize=64)
def find_capacity(subject: Subject) -> StateCapacity:
    """Derive the capacity of a decode state from its bytes by length, on torch's meta device, without using memory."""
    attn = subject.make(subject.shape(4, batch=1))

    def size(positions: int) -> int:
        return state_bytes(attn.init_state(1, positions, subject.dtype, "meta"))

    try:
        single, half, full = size(1), size(MANY // 2), size(MANY)
    except Exception as error:
        return StateCapacity(None, f"the capacity of its state is unknown ({type(error).__name__})")
    if single == full:
        return StateCapacity(None, "the capacity of its state is unknown: its bytes do not depend on max_len")
    if half < full:
        return StateCapacity(None, "its state stores every position")
    return StateCapacity(bisect_left(range(1, MANY), full, key=size) + 1)


@lru_cache(maxsize=64)
def accepts_chunks(subject: Subject) -> bool:
    """Whether one step accepts several positions."""
    attn, call = subject.prepare(2, batch=1)
    try:
        call.step(attn, attn.init_state(1, 8, subject.dtype, subject.device))
    except (UsageError, UnsupportedError):
        return False
    return True


@lru_cache(maxsize=64)
def _seconds_per_pair(subject: Subject) -> float:
    """Seconds that the reference takes for one query-key pair of a head: the fastest of four calls, because another
    program may slow one down."""
    shape = subject.shape(130, batch=1)
    attn, call = subject.oracle(shape), subject.draw(shape)
    with torch.no_grad():
        fastest = min(timeit.repeat(lambda: call.run(attn), number=1, repeat=4))
    return fastest / (130 * 130 * shape.heads)


def estimate_reference_s(subject: Subject, shape: Shape) -> float:
    """Seconds that the reference's output takes on this machine."""
    return _seconds_per_pair(subject) * shape.batch * shape.heads * shape.n * shape.m


def too_slow(subject: Subject, shape: Shape) -> str | None:
    """Why sizes are not tested if the reference would take too long; None otherwise."""
    expected = estimate_reference_s(subject, shape)
    reason = f"its reference is slow, N={shape.n} over M={shape.m} would take it about {expected:.0f} s: left out"
    return reason if expected > MAX_REFERENCE_S else None


def is_refused_size(subject: Subject, error: UnsupportedError) -> bool:
    """Whether an error is the one with which the mechanism refuses sizes of plain calls, apart from its numbers."""
    return _mask_numbers(error) in _find_refusals(subject)


@lru_cache(maxsize=64)
def _find_refusals(subject: Subject) -> frozenset[str]:
    """With what plain calls are refused, without numbers: of lengths that are no multiple of a block, of values that
    are not as wide as keys. Empty if all sizes are refused."""
    accepted = [subject.shape(n) for n in (64, 512)]
    if all(any(_refuse(subject, shape)) for shape in accepted):
        return frozenset()
    shapes = [*map(subject.shape, (1, 17, 130)), subject.shape(512, value_dim=5)]
    return frozenset(text for shape in shapes for text in _refuse(subject, shape))


def _refuse(subject: Subject, shape: Shape) -> Iterator[str]:
    """The refusals of plain calls, without numbers; other errors are failures of other checks."""
    for mask in subject.plain_masks:
        try:
            with torch.no_grad():
                subject.draw(shape, mask=mask).run(subject.make(shape))
        except UnsupportedError as error:
            yield _mask_numbers(error)
        except Exception:
            continue


def _mask_numbers(error: UnsupportedError) -> str:
    return re.sub(r"\d+", "#", re.sub(r":backend=\w+", "", str(error)))


def refuses_shape(subject: Subject, shape: Shape) -> str | None:
    """Why the mechanism cannot be created for these sizes; None if it can."""
    try:
        subject.make(shape)
    except (UsageError, UnsupportedError) as error:
        return str(error)
    return None


def create_others(subject: Subject, option: str) -> Iterator[tuple[object, Subject]]:
    """Yield the mechanism of a spec with other values of an option that it accepts."""
    spec, attn = subject.attn.origin.spec, subject.attn
    if not isinstance(subject.source, str) or not isinstance(spec, Spec):
        return
    hint = get_type_hints(type(attn).__init__).get(option)
    for value in _other_values(attn.origin.options[option], hint, Random(f"{option} {subject.seed}")):
        variation = replace(subject, source=str(Spec(spec.name, {**spec.options, option: value}, spec.backend)))
        with suppress(UsageError, UnsupportedError):
            variation.make(variation.shape(1))
            yield value, variation


def other_instances(subject: Subject) -> Iterator[Subject]:
    """Yield the mechanism with a different value of one option, for each option that changes results."""
    yield from _find_others(subject) if subject.others is None else subject.others


@lru_cache(maxsize=16)
def _find_others(subject: Subject) -> tuple[Subject, ...]:
    shape = subject.shape(33)
    with torch.no_grad():  # options may change the inputs that a mechanism takes, and their widths
        expected, others = subject.draw(shape).run(subject.oracle(shape)), []
        for option in subject.attn.origin.options:
            for _, other in create_others(subject, option):
                with suppress(UsageError, UnsupportedError):
                    if not torch.equal(other.draw(shape).run(other.oracle(shape)), expected):
                        others.append(other)
                        break
    return tuple(others)


@lru_cache(maxsize=16)
def combine_options(subject: Subject) -> Subject | None:
    """The mechanism of a spec with all options at other values at once; None with fewer than two, or if it refuses."""
    specs = [parse(other.source) for other in other_instances(subject) if isinstance(other.source, str)]
    spec = subject.attn.origin.spec
    if len(specs) < 2 or not isinstance(spec, Spec):
        return None
    changed = {
        name: x for s in specs if isinstance(s, Spec) for name, x in s.options.items() if spec.options.get(name) != x
    }
    combined = replace(subject, source=str(Spec(spec.name, {**spec.options, **changed}, spec.backend)))
    try:
        combined.make(combined.shape(1))
    except (UsageError, UnsupportedError):
        return None
    return combined


def _other_values(value: object, hint: object, random: Random) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):  # sizes such as windows also at one that is no multiple of a block
        odd = [2 * random.randrange(4, 12) + 1] if value > SMALL else []
        return *odd, *(x for x in (3, 2, value + 1, 1) if x != value)
    texts = [x for part in (hint, *get_args(hint)) for x in get_args(part) if isinstance(x, str) and x != value]
    if value is None:
        return *texts, 3, 2
    return (value * 2,) if isinstance(value, float) else tuple(texts)
