"""Minified pages and plots look the same."""

from __future__ import annotations

from efficient_attn.report.site.minify import drop_end_tags, minify_svg


def test_a_shortened_picture_keeps_its_text() -> None:
    path, text = '<path d="M 1.23456 7.5 \nL 2 3 \n"/>', '<text x="3.14159">0.12345x id="b"</text>'
    svg = f'<g id="a1.2345"><!-- 0.12345 -->\n  {path}{text}\n</g>'
    assert minify_svg(svg) == '<path d="M1.23 7.5L2 3"/><text x="3.14">0.12345x id="b"</text>'


def test_referenced_ids_are_kept() -> None:
    kept = '<g id="x-patch_1"/><path id="m" d="M0 0"/><use xlink:href="#m" clip-path="url(#c)"/><clipPath id="c"/>'
    assert minify_svg(f'<g id="axes">{kept}</g>') == kept


def test_only_repeated_styles_become_rules() -> None:
    twice = '<path style="fill: none; stroke: #123"/>'
    old = '<style type="text/css">*{x}</style>'
    short = minify_svg(f'<svg viewBox="0 0 1 1">{old}{twice}{twice}<text style="fill: red">a</text></svg>')
    name = short.partition('class="')[2].partition('"')[0]
    rule = f"<style>.plot svg .{name}{{fill:none;stroke:#123}}</style>"
    path = f'<path class="{name}"/>'
    assert short == f'<svg viewBox="0 0 1 1">{rule}{path}{path}<text style="fill: red">a</text></svg>'


def test_only_optional_end_tags_are_removed() -> None:
    rows = "<thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;/td&gt;</td></tr></tbody>"
    short = drop_end_tags(f"<table>{rows}</table><ul><li>b</li></ul><p>c</p>")
    assert short == "<table><thead><tr><th>a<tbody><tr><td>&lt;/td&gt;</table><ul><li>b</ul><p>c</p>"
