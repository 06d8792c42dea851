"""A run's page within a site."""

from __future__ import annotations

from efficient_attn.report.site.runs import shorten


def test_a_shortened_picture_keeps_its_text() -> None:
    svg = '<g id="a1.2345"><!-- 0.12345 -->\n  <path d="M 1.23456 7.5"/><text x="3.14159">0.12345x</text>\n</g>'
    assert shorten(svg) == '<g id="a1.23"><path d="M 1.23 7.5"/><text x="3.14">0.12345x</text></g>'
