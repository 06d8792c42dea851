"""Sizes in bytes as people write them: on the command line and in suites."""

from __future__ import annotations

import re

from .errors import UsageError

SIZE = re.compile(r"([0-9.]+(?:e[0-9]+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes: ``8GB`` is decimal, ``512MiB`` binary, ``2e9`` bytes. Raises `UsageError` for anything else."""
    found = SIZE.fullmatch(text.strip())
    try:
        value = float(found[1]) if found else 0.0
    except ValueError:
        value = 0.0
    if found and found[2]:
        value *= (1024 if found[3] else 1000) ** ("kmgt".index(found[2].lower()) + 1)
    if not 1 <= value < 2**63:
        raise UsageError(f"{text!r} is not a size such as 8GB, 512MiB or 2e9")
    return int(value)
