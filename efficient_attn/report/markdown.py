"""Text as Markdown shows it, whatever it holds: no markup, no tags, no code that ends early."""

from __future__ import annotations

import re


def plain(text: object) -> str:
    """Text that Markdown shows as it is, in a table's cell as well: no markup, no line breaks."""
    safe = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*\[\]|~]|^>)", r"\\\1", safe)


def fence(text: str) -> str:
    """A code fence longer than any run of backticks in the text."""
    return "`" * max(3, _longest(text) + 1)


def code(text: str) -> str:
    """Text as code in a line, in a table's cell as well."""
    line, ticks = " ".join(text.split()).replace("|", "\\|"), "`" * (_longest(text) + 1)
    return f"{ticks}{line}{ticks}" if ticks == "`" else f"{ticks} {line} {ticks}"


def _longest(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)
