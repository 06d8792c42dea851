"""Compact files: minified pages look the same, and scripts store each text once."""

from __future__ import annotations

from efficient_attn.report.site.compact import TextTable, drop_end_tags, format_call


def test_only_optional_end_tags_are_removed() -> None:
    rows = "<thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;/td&gt;</td></tr></tbody>"
    short = drop_end_tags(f"<table>{rows}</table><ul><li>b</li></ul><p>c</p>")
    assert short == "<table><thead><tr><th>a<tbody><tr><td>&lt;/td&gt;</table><ul><li>b</ul><p>c</p>"


def test_texts_are_stored_once_and_numbers_are_rounded() -> None:
    texts = TextTable()
    encoded = texts.encode(["a", ("b", "a"), 1.23456789, 8192, None])
    assert format_call("add", list(texts), encoded) == 'add(["a","b"],[0,[1,0],1.2346,8192,null]);\n'
