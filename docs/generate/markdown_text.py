"""Markdown of tables and descriptions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; pipes in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def read_descriptions(doc: str, names: Iterable[str]) -> dict[str, str]:
    """The descriptions in a docstring that lists fields as ``a, b: text; c: text. d: text``, by name."""
    known = set(names)
    text = " ".join(doc.split())
    name = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
    mark = re.compile(rf"(?:^|(?<=[.;] ))((?:{name})(?:, (?:{name}))*): ")
    found = list(mark.finditer(text))
    described: dict[str, str] = {}
    for match, following in zip_longest(found, found[1:]):
        description = text[match.end() : following.start() if following else None]
        described |= dict.fromkeys(match[1].split(", "), convert_code(description.strip(" ;.")))
    return described


def convert_code(text: str) -> str:
    """Single backquotes, as in Markdown."""
    return text.replace("``", "`")
