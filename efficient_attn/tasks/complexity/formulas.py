"""Formulas as papers write them: ``N^2 D``, ``N sqrt(N)``, ``3 (D^2 + D)``; adjacent factors multiply.

Formulas are validated before evaluation, and evaluated in floats, so that powers overflow instead of taking long.
"""

import ast
import math
import re
from collections.abc import Mapping, Sequence

from ...errors import UsageError, make_unknown_error

FUNCTIONS = {"sqrt": math.sqrt, "log": math.log2}
OPERATORS = (ast.Add, ast.Mult, ast.Div, ast.Pow)
ALLOWED_NODES = (ast.Expression, ast.BinOp, *OPERATORS, ast.Call, ast.Name, ast.Load, ast.Constant)
TOKEN = re.compile(r"[A-Za-z]+|[0-9]+(?:\.[0-9]+)?|[+*/^()]|(\S)")  # a group for anything else
MAX_CHARACTERS = 200  # so that nesting stays within Python's limits


def evaluate(text: str, variables: Mapping[str, float]) -> float:
    """The value of a formula. variables: values of the names that it may use. log is base 2. Raises `UsageError` for
    invalid formulas, unknown names, and values that are not finite numbers."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{text[:20]!r}.. is not a formula: it has {len(text):,} characters, at most {MAX_CHARACTERS}")
    matches = list(TOKEN.finditer(text))
    if invalid := [match[1] for match in matches if match[1]]:
        raise UsageError(f"{text!r} is not a formula: {invalid[0]!r} is not allowed in it")
    tokens = [match[0] for match in matches]
    for name in filter(str.isalpha, tokens):
        if name not in variables and name not in FUNCTIONS:
            raise make_unknown_error("name", name, [*variables, *FUNCTIONS], where=repr(text))
    try:
        tree = ast.parse(_to_python(tokens), mode="eval")
    except SyntaxError as error:
        raise UsageError(f"{text!r} is not a formula; write it like N^2 D or N sqrt(N)") from error
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED_NODES):
            raise UsageError(f"{text!r} is not a formula: it can have sums, products, powers, sqrt and log")
    names = {name: float(value) for name, value in variables.items()}
    try:
        value = float(eval(compile(tree, "formula", "eval"), {"__builtins__": {}}, {**FUNCTIONS, **names}))
    except (ArithmeticError, TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{text!r} has no value for {', '.join(f'{n} = {v:g}' for n, v in variables.items())}")
    return value


def _to_python(tokens: Sequence[str]) -> str:
    """The formula in Python, numbers as floats. A number after a factor is invalid: ``N2`` usually means N^2."""
    parts: list[str] = []
    for previous, token in zip([None, *tokens], tokens, strict=False):
        begins = token == "(" or token[0].isalnum()
        ends = previous is not None and (previous == ")" or (previous[0].isalnum() and previous not in FUNCTIONS))
        parts += ["*"] * (begins and ends and not token[0].isdigit())
        parts += ["**" if token == "^" else token if "." in token or not token.isdigit() else f"{token}.0"]
    return " ".join(parts)
