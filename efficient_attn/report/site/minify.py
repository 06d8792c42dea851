"""Shrink pages and SVG plots without changing how they look."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator

BACKGROUND_IDS = ("patch_1", "patch_2")  # ids used by the style sheet to hide backgrounds in dark mode
MIN_USES = 2  # a style used this often becomes a CSS rule
TAG = re.compile(r"<[^>]*>")
STYLE = re.compile(r' style="([^"]*)"')
OPTIONAL_END_TAG = re.compile("</(?:td|th|tr|thead|tbody|li)>")  # optional in HTML
ID = re.compile(r' id="([^"]*)"')


def drop_end_tags(html: str) -> str:
    """Remove the optional end tags of table parts and list items."""
    return OPTIONAL_END_TAG.sub("", html)


def minify_svg(svg: str) -> str:
    """Remove comments, round coordinates to 0.01 points, and turn repeated styles into CSS rules.

    Text is unchanged. Requires that the page's plots have the class ``plot``.
    """
    svg = re.sub(r"<!--.*?-->|<style.*?</style>|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s+<", "><", svg)
    referenced_ids = {*re.findall(r'(?:url\(#|href="#)([^")]+)', svg)}
    repeated = [style for style, times in Counter(STYLE.findall(svg)).items() if times >= MIN_USES]
    rules = {style: f"s{hashlib.sha256(style.encode()).hexdigest()[:6]}" for style in repeated}
    svg = "".join(_drop_plain_groups(TAG.sub(lambda tag: _minify_tag(tag[0], referenced_ids, rules), svg)))
    minified_rules = {name: re.sub(r"([:;]) ", r"\1", style) for style, name in rules.items()}
    sheet = "".join(f".plot svg .{name}{{{style}}}" for name, style in minified_rules.items())
    start = re.search(r"<svg[^>]*>", svg)
    return f"{svg[: start.end()]}<style>{sheet}</style>{svg[start.end() :]}" if start and sheet else svg


def _minify_tag(tag: str, referenced_ids: set[str], rules: dict[str, str]) -> str:
    tag = ID.sub(lambda match: match[0] if match[1] in referenced_ids or match[1].endswith(BACKGROUND_IDS) else "", tag)
    tag = STYLE.sub(lambda match: f' class="{rules[match[1]]}"' if match[1] in rules else match[0], tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"\s*([A-Za-z])\s*", r"\1", path[0]).strip(), tag)
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag)


def _drop_plain_groups(svg: str) -> Iterator[str]:
    """Yield the parts of an SVG without groups that have no attributes."""
    open_groups: list[bool] = []
    position = 0
    for tag in TAG.finditer(svg):
        yield svg[position : tag.start()]
        position = tag.end()
        if re.match(r"<g[ >]", tag[0]) and not tag[0].endswith("/>"):
            open_groups.append(tag[0] != "<g>")
            yield tag[0] if open_groups[-1] else ""
        elif tag[0] == "</g>":
            yield tag[0] if open_groups.pop() else ""
        elif tag[0] != "<g/>":
            yield tag[0]
    yield svg[position:]
