"""File names: only plain characters, and unique."""

from __future__ import annotations

import re

import hostile

from efficient_attn.report.site.page_names import make_name


def test_names_are_plain_and_unique() -> None:
    names = [make_name(text) for text in hostile.HOSTILE] + [make_name("a", "b"), make_name("a-b"), make_name("ab")]
    assert len(set(names)) == len(set(hostile.HOSTILE)) + 3
    assert all(re.fullmatch(r"[a-z0-9-]{8,49}", name) for name in names)
