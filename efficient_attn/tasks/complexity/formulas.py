"""Formulas as papers write them: ``N^2 D``, ``N sqrt(N)``, ``3 (D^2 + D)``: factors side by side multiply.

What is no formula is refused before anything is worked out, and all is worked out in floats, whose powers end.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence

from ...errors import UsageError, unknown

FUNCTIONS = {"sqrt": math.sqrt, "log": math.log2}
ALLOWED = (ast.Expression, ast.BinOp, ast.Add, ast.Mult, ast.Div, ast.Pow, ast.Call, ast.Name, ast.Load, ast.Constant)
TOKEN = re.compile(r"\s*([A-Za-z]+|[0-9]+(?:\.[0-9]+)?|[+*/^()])")
LONGEST = 200  # characters, so that nothing is nested deeper than Python reads


def evaluate(text: str, known: Mapping[str, float]) -> float:
    """The value of a formula. known: of the names that it may use. log is to the base of 2.

    Raises `UsageError` for what is no formula, for other names, and for what has no value that is a number.
    """
    if len(text) > LONGEST:
        raise UsageError(f"{text[:20]!r}.. is not a formula: it has {len(text):,} characters, at most {LONGEST}")
    tokens = _split(text.strip())
    for name in filter(str.isalpha, tokens):
        if name not in known and name not in FUNCTIONS:
            raise unknown("name", name, [*known, *FUNCTIONS], where=repr(text))
    try:
        tree = ast.parse(_spell_out(tokens), mode="eval")
    except SyntaxError as error:
        raise UsageError(f"{text!r} is not a formula; write it like N^2 D or N sqrt(N)") from error
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise UsageError(f"{text!r} is not a formula: it can have sums, products, powers, sqrt and log")
    names = {name: float(value) for name, value in known.items()}
    try:
        value = float(eval(compile(tree, "formula", "eval"), {"__builtins__": {}}, {**FUNCTIONS, **names}))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise _without_value(text, known) from error
    if not math.isfinite(value):
        raise _without_value(text, known)
    return value


def _without_value(text: str, known: Mapping[str, float]) -> UsageError:
    return UsageError(f"{text!r} has no value for {', '.join(f'{n} = {v:g}' for n, v in known.items())}")


def _split(text: str) -> list[str]:
    """Names, numbers and signs."""
    found, at = [], 0
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise UsageError(f"{text!r} is not a formula: {text[at]!r} means nothing in it")
        found.append(token[1])
        at = token.end()
    return found


def _spell_out(found: Sequence[str]) -> str:
    """The formula as Python has it: every product with its sign, powers as ``**``, numbers as floats. A number that
    follows a factor is no product, because ``N2`` means N^2 to whoever writes it."""
    spelt: list[str] = []
    for before, now in zip([None, *found], found, strict=False):
        begins = now == "(" or now[0].isalnum()
        ends = before is not None and (before == ")" or (before[0].isalnum() and before not in FUNCTIONS))
        spelt += ["*"] * (begins and ends and not now[0].isdigit())
        spelt += ["**" if now == "^" else now if "." in now or not now.isdigit() else f"{now}.0"]
    return " ".join(spelt)
