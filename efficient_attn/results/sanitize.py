"""Sanitize text for display: no control characters, no lone surrogates, no invisible characters."""

import re
import unicodedata
from typing import Any

_SPACE = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")


def sanitize_line(text: str) -> str:
    """The text in one line, without control characters, direction overrides, characters of zero width, and lone
    surrogates, which cannot be encoded."""
    if text.isprintable():
        return text
    # the only unprintable characters that are kept are other spaces
    return "".join(c for c in _SPACE.sub(" ", text) if c.isprintable() or unicodedata.category(c) == "Zs")


def sanitize_lines(text: str) -> str:
    """The text with its lines and tabs."""
    return "\n".join("\t".join(map(sanitize_line, line.split("\t"))) for line in text.split("\n"))


def sanitize_json(value: Any) -> Any:
    """A value of JSON with all its texts, keys too, as `sanitize_lines` returns them."""
    if isinstance(value, str):
        return sanitize_lines(value)
    if isinstance(value, dict):
        return {sanitize_line(str(key)): sanitize_json(item) for key, item in value.items()}
    return [sanitize_json(item) for item in value] if isinstance(value, list) else value
