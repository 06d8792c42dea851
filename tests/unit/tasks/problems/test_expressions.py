"""Expressions of ListOps: their sizes, and their values by a recursive evaluator."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.expressions import (
    CLOSE,
    MIN,
    SM,
    count_max_tokens,
    draw_expressions,
    evaluate_expression,
)

OPERATORS = (min, max, lambda values: int(median(values)), lambda values: sum(values) % 10)


def _solve(tokens: list[int], depth: int = 1) -> tuple[int, list[int], int, int]:
    """The value, the tokens that are left, the depth, and the most arguments."""
    first, *rest = tokens
    if first < MIN:
        return first, rest, depth, 0
    values, deepest, most = [], depth, 0
    while rest[0] != CLOSE:
        value, rest, below, wide = _solve(rest, depth + 1)
        values.append(value)
        deepest, most = max(deepest, below), max(most, wide)
    return OPERATORS[first - MIN](values), rest[1:], deepest, max(most, len(values))


@pytest.mark.parametrize(("depth", "arguments", "longer_than", "length"), [(4, 5, 8, 48), (2, 3, 3, 6), (6, 3, 20, 60)])
def test_expressions_have_the_requested_sizes(depth: int, arguments: int, longer_than: int, length: int) -> None:
    sizes = {"depth": depth, "arguments": arguments, "longer_than": longer_than, "length": length}
    expressions = list(draw_expressions(**sizes, count=300, generator=np.random.default_rng(0)))
    assert len({tuple(tokens) for tokens in expressions}) == len(expressions) == 300
    assert {tokens[0] for tokens in expressions} == set(range(MIN, SM + 1))
    solved = [_solve(tokens) for tokens in expressions]
    assert [evaluate_expression(tokens) for tokens in expressions] == [answer for answer, *_ in solved]
    assert all(not rest for _, rest, *_ in solved)
    assert max(deepest for *_, deepest, _ in solved) == depth
    assert max(most for *_, most in solved) == arguments
    assert min(map(len, expressions)) == longer_than + 1
    assert max(map(len, expressions)) < length


def test_values_of_known_expressions() -> None:
    med, smallest, largest, total = 12, 10, 11, 13
    assert evaluate_expression([med, 1, 4, CLOSE]) == 2
    assert evaluate_expression([med, 9, 1, 4, CLOSE]) == 4
    assert evaluate_expression([total, 7, largest, 2, smallest, 5, 6, CLOSE, CLOSE, CLOSE]) == 2


def test_max_tokens_counts_full_expressions() -> None:
    assert [count_max_tokens(depth, 5) for depth in (1, 2, 3, 4)] == [1, 7, 37, 187]


def test_sizes_with_too_few_expressions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efficient_attn.tasks.problems.expressions.DRAWS_PER_EXPRESSION", 100)
    sizes = {"depth": 2, "arguments": 2, "longer_than": 3, "length": 5}  # four operators, a hundred pairs of digits
    with pytest.raises(UsageError, match="only 400 differ"):
        list(draw_expressions(**sizes, count=401, generator=np.random.default_rng(0)))
