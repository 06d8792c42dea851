"""Minified pages look the same."""

from __future__ import annotations

from efficient_attn.report.site.minify import drop_end_tags


def test_only_optional_end_tags_are_removed() -> None:
    rows = "<thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;/td&gt;</td></tr></tbody>"
    short = drop_end_tags(f"<table>{rows}</table><ul><li>b</li></ul><p>c</p>")
    assert short == "<table><thead><tr><th>a<tbody><tr><td>&lt;/td&gt;</table><ul><li>b</ul><p>c</p>"
