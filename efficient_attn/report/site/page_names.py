"""File names of a site: a readable slug, and a digest that makes the name unique."""

from __future__ import annotations

import hashlib

from .. import formatting

LONGEST_SLUG = 40


def make_name(*parts: object) -> str:
    """``sliding-window-2f6c1a09``: only letters, digits and dashes, for any parts."""
    text = "\0".join(map(str, parts))
    slug = formatting.make_slug(*parts)[:LONGEST_SLUG].strip("-")
    return "-".join(filter(None, (slug, digest(text.encode())[:8])))


def digest(data: bytes) -> str:
    """The SHA-256 of a file's bytes."""
    return hashlib.sha256(data).hexdigest()
