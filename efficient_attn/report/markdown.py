"""Escape arbitrary text for Markdown."""

import re


def escape_markdown(text: object) -> str:
    """Escape markup and remove line breaks, for paragraphs and table cells."""
    safe = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*\[\]|~]|^>)", r"\\\1", safe)


def make_fence(text: str) -> str:
    """A code fence longer than any run of backticks in the text."""
    return "`" * max(3, _find_longest_backtick_run(text) + 1)


def format_code(text: str) -> str:
    """Format text as inline code, also inside a table cell."""
    line, ticks = " ".join(text.split()).replace("|", "\\|"), "`" * (_find_longest_backtick_run(text) + 1)
    return f"{ticks}{line}{ticks}" if ticks == "`" else f"{ticks} {line} {ticks}"


def _find_longest_backtick_run(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)
