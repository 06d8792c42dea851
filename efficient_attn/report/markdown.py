"""Text as Markdown shows it, whatever it holds: no markup, no tags, no code that ends early."""

from __future__ import annotations

import re


def escape_markdown(text: object) -> str:
    """Text that Markdown shows as it is, in a table's cell as well: no markup, no line breaks."""
    safe = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*\[\]|~]|^>)", r"\\\1", safe)


def make_fence(text: str) -> str:
    """A code fence longer than any run of backticks in the text."""
    return "`" * max(3, _find_longest_backtick_run(text) + 1)


def format_code(text: str) -> str:
    """Text as code in a line, in a table's cell as well."""
    line, ticks = " ".join(text.split()).replace("|", "\\|"), "`" * (_find_longest_backtick_run(text) + 1)
    return f"{ticks}{line}{ticks}" if ticks == "`" else f"{ticks} {line} {ticks}"


def _find_longest_backtick_run(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)
