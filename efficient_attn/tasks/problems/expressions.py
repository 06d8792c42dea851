"""Generate and evaluate expressions of ListOps as in Long Range Arena (Tay et al. 2020, arXiv:2011.04006). The brackets
in its files that only group are left out."""

from collections.abc import Iterator

import numpy as np

from ...errors import UsageError

OPERATOR_PROBABILITY = 0.25  # probability that an argument is an expression
MIN, MAX, MED, SM, CLOSE, PAD = range(10, 16)  # after the digits
DRAWS_PER_EXPRESSION = 2000  # until one has the requested length


def count_max_tokens(depth: int, arguments: int) -> int:
    """The tokens of the longest expression: an operator, its arguments and its bracket, nested."""
    longest = 1
    for _ in range(depth - 1):
        longest = 2 + arguments * longest
    return longest


def draw_expressions(
    *, depth: int, arguments: int, longer_than: int, length: int, count: int, generator: np.random.Generator
) -> Iterator[list[int]]:
    """Draw ``count`` distinct expressions of more than ``longer_than`` and fewer than ``length`` tokens. Raises
    `UsageError` if they cannot be found."""
    numbers, unique = _draw_numbers(generator), set()
    for _ in range(DRAWS_PER_EXPRESSION * count):
        tokens = _draw_expression(depth, arguments, length, numbers)
        if len(tokens) > longer_than and len(tokens) < length and (content := bytes(tokens)) not in unique:
            unique.add(content)
            yield tokens
            if len(unique) == count:
                return
    n_draws = DRAWS_PER_EXPRESSION * count
    raise UsageError(f"listops: of {n_draws} draws only {len(unique)} differ and have the requested length")


def _draw_numbers(generator: np.random.Generator) -> Iterator[float]:
    while True:  # drawn in bulk, because a single draw takes as long as fifty
        yield from generator.random(4096).tolist()


def _draw_expression(depth: int, arguments: int, length: int, numbers: Iterator[float]) -> list[int]:
    """Tokens of an expression whose root is an operator, or its beginning if it is too long."""
    tokens, missing_arguments = [], []  # by open operator
    while len(tokens) < length:
        if not tokens or (len(missing_arguments) + 1 < depth and next(numbers) < OPERATOR_PROBABILITY):
            missing_arguments.append(2 + int((arguments - 1) * next(numbers)))
            tokens.append(MIN + int(4 * next(numbers)))
            continue
        tokens.append(int(10 * next(numbers)))
        missing_arguments[-1] -= 1
        while missing_arguments and not missing_arguments[-1]:
            tokens.append(CLOSE)
            missing_arguments.pop()
            if not missing_arguments:
                return tokens
            missing_arguments[-1] -= 1
    return tokens


def evaluate_expression(tokens: list[int]) -> int:
    """The value of an expression. A median between two digits is rounded down, as in LRA."""
    operators, operands = [], [[]]
    for token in tokens:
        if token < MIN:
            operands[-1].append(token)
        elif token < CLOSE:
            operators.append(token)
            operands.append([])
        else:
            operands[-2].append(_apply_operator(operators.pop(), operands.pop()))
    return operands[0][0]


def _apply_operator(operator: int, values: list[int]) -> int:
    if operator == MED:
        values.sort()
        return (values[len(values) // 2] + values[(len(values) - 1) // 2]) // 2
    return min(values) if operator == MIN else max(values) if operator == MAX else sum(values) % 10
