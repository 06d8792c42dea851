"""Text as it may be shown: no control characters, no halves of characters."""

from __future__ import annotations

import re
from typing import Any

# control characters, what turns the direction of text around, and lone surrogates, which no encoding takes
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACE = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")


def clean(text: str) -> str:
    """The text in one line."""
    if text.isprintable():
        return text
    return _CONTROL.sub("", _SPACE.sub(" ", text))


def clean_lines(text: str) -> str:
    """The text with its lines and tabs."""
    return "\n".join("\t".join(map(clean, line.split("\t"))) for line in text.split("\n"))


def clean_all(value: Any) -> Any:
    """A value of JSON with all its texts, keys too, as `clean_lines` leaves them."""
    if isinstance(value, str):
        return clean_lines(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_all(inner) for key, inner in value.items()}
    return [clean_all(inner) for inner in value] if isinstance(value, list) else value
