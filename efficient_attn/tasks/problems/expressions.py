"""Expressions of ListOps as tokens: drawn as Long Range Arena draws them (Tay et al. 2020, arXiv:2011.04006), and
worked out. Brackets that merely group, of which its files are full, say nothing and are left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import UsageError

OPERATOR = 0.25  # how often an argument is an expression of its own
MIN, MAX, MED, SM, CLOSE, PAD = range(10, 16)  # after the digits
TRIES = 2000  # draws for one that has the length


def most_tokens(depth: int, arguments: int) -> int:
    """Of the longest expression: an operator, its arguments, its bracket."""
    longest = 1
    for _ in range(depth - 1):
        longest = 2 + arguments * longest
    return longest


def expressions(
    *, depth: int, arguments: int, longer_than: int, length: int, count: int, generator: np.random.Generator
) -> Iterator[list[int]]:
    """So many that differ, as tokens, each longer than ``longer_than`` and shorter than ``length``.

    Raises `UsageError` where there are hardly so many."""
    numbers, known = _numbers(generator), set()
    for _ in range(TRIES * count):
        tokens = _expression(depth, arguments, length, numbers)
        if len(tokens) > longer_than and len(tokens) < length and (content := bytes(tokens)) not in known:
            known.add(content)
            yield tokens
            if len(known) == count:
                return
    raise UsageError(f"listops: of {TRIES * count} expressions only {len(known)} differ and have the length asked for")


def _numbers(generator: np.random.Generator) -> Iterator[float]:
    while True:  # drawn many at a time: one alone costs as much as fifty
        yield from generator.random(4096).tolist()


def _expression(depth: int, arguments: int, length: int, numbers: Iterator[float]) -> list[int]:
    """Tokens of an expression, or its beginning where it is too long. Its root is an operator: a digit is too short."""
    tokens, missing = [], []  # arguments that open operators still want
    while len(tokens) < length:
        if not tokens or (len(missing) + 1 < depth and next(numbers) < OPERATOR):
            missing.append(2 + int((arguments - 1) * next(numbers)))
            tokens.append(MIN + int(4 * next(numbers)))
            continue
        tokens.append(int(10 * next(numbers)))
        missing[-1] -= 1
        while missing and not missing[-1]:
            tokens.append(CLOSE)
            missing.pop()
            if not missing:
                return tokens
            missing[-1] -= 1
    return tokens


def value(tokens: list[int]) -> int:
    """What an expression comes to. A median between two digits is rounded down, as in LRA."""
    operators, lists = [], [[]]
    for token in tokens:
        if token < MIN:
            lists[-1].append(token)
        elif token < CLOSE:
            operators.append(token)
            lists.append([])
        else:
            lists[-2].append(_apply(operators.pop(), lists.pop()))
    return lists[0][0]


def _apply(operator: int, values: list[int]) -> int:
    if operator == MED:
        values.sort()
        return (values[len(values) // 2] + values[(len(values) - 1) // 2]) // 2
    return min(values) if operator == MIN else max(values) if operator == MAX else sum(values) % 10
