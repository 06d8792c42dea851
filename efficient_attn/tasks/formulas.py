"""Formulas as papers write them: ``N^2 D``, ``N sqrt(N)``, ``3 (D^2 + D)``: factors side by side multiply."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping

from ..errors import UsageError, unknown

FUNCTIONS = {"sqrt": math.sqrt, "log": math.log2}
ALLOWED = (ast.Expression, ast.BinOp, ast.Add, ast.Mult, ast.Div, ast.Pow, ast.Call, ast.Name, ast.Load, ast.Constant)
TOKEN = re.compile(r"\s*([A-Za-z]+|\d+(?:\.\d+)?|[+*/^()])")


def evaluate(text: str, known: Mapping[str, float]) -> float:
    """The value of a formula. known: of the names that it may use. log is to the base of 2.

    Raises `UsageError` for what is no formula, and for other names.
    """
    try:
        tree = ast.parse(_spell_out(text), mode="eval")
    except SyntaxError as error:
        raise UsageError(f"{text!r} is not a formula; write it like N^2 D or N sqrt(N)") from error
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise UsageError(f"{text!r} is not a formula: it can have sums, products, powers, sqrt and log")
        if isinstance(node, ast.Name) and node.id not in known and node.id not in FUNCTIONS:
            raise unknown("name", node.id, [*known, *FUNCTIONS], where=repr(text))
    try:
        return float(eval(compile(tree, "formula", "eval"), {"__builtins__": {}}, {**FUNCTIONS, **known}))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise UsageError(f"{text!r} has no value for {', '.join(f'{n} = {v:g}' for n, v in known.items())}") from error


def _spell_out(text: str) -> str:
    """The formula as Python has it: every product with its sign, powers as ``**``."""
    found, at, text = [], 0, text.strip()
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise UsageError(f"{text!r} is not a formula: {text[at]!r} means nothing in it")
        found.append(token[1])
        at = token.end()
    spelt: list[str] = []
    for before, now in zip([None, *found], found, strict=False):
        begins = now == "(" or now[0].isalnum()
        ends = before is not None and (before == ")" or (before[0].isalnum() and before not in FUNCTIONS))
        spelt += ["*"] * (begins and ends) + ["**" if now == "^" else now]
    return "".join(spelt)
