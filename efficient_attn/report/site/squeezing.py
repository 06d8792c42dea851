"""Pages and their plots in fewer bytes, looking the same: what repeats is said once, what nobody refers to goes."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator

GROUNDS = ("patch_1", "patch_2")  # ids that the style sheet knows: the dark drops these grounds
FEWEST = 2  # uses that make a style a rule
TAG = re.compile(r"<[^>]*>")
STYLE = re.compile(r' style="([^"]*)"')
ENDS = re.compile("</(?:td|th|tr|thead|tbody|li)>")  # HTML lets these be left out: what comes next ends them
ID = re.compile(r' id="([^"]*)"')


def drop_ends(html: str) -> str:
    """The same page without the end tags of table parts and list items, which a browser adds by itself."""
    return ENDS.sub("", html)


def shorten(svg: str) -> str:
    """The same picture: no comments, coordinates to a hundredth of a point, a rule for styles that several parts have.

    Text stays as it is. For a page whose plots are of the class ``plot``.
    """
    svg = re.sub(r"<!--.*?-->|<style.*?</style>|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s+<", "><", svg)
    named = {*re.findall(r'(?:url\(#|href="#)([^")]+)', svg)}
    several = [style for style, times in Counter(STYLE.findall(svg)).items() if times >= FEWEST]
    rules = {style: f"s{hashlib.sha256(style.encode()).hexdigest()[:6]}" for style in several}
    svg = "".join(_drop_groups(TAG.sub(lambda tag: _shorten_tag(tag[0], named, rules), svg)))
    sheet = "".join(f".plot svg .{name}{{{_pack(style)}}}" for style, name in rules.items())
    start = re.search(r"<svg[^>]*>", svg)
    return f"{svg[: start.end()]}<style>{sheet}</style>{svg[start.end() :]}" if start and sheet else svg


def _shorten_tag(tag: str, named: set[str], rules: dict[str, str]) -> str:
    tag = ID.sub(lambda found: found[0] if found[1] in named or found[1].endswith(GROUNDS) else "", tag)
    tag = STYLE.sub(lambda found: f' class="{rules[found[1]]}"' if found[1] in rules else found[0], tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"\s*([A-Za-z])\s*", r"\1", path[0]).strip(), tag)
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag)


def _drop_groups(svg: str) -> Iterator[str]:
    """The parts without groups that say nothing of what is in them."""
    kept: list[bool] = []
    at = 0
    for tag in TAG.finditer(svg):
        yield svg[at : tag.start()]
        at = tag.end()
        if re.match(r"<g[ >]", tag[0]) and not tag[0].endswith("/>"):
            kept.append(tag[0] != "<g>")
            yield tag[0] if kept[-1] else ""
        elif tag[0] == "</g>":
            yield tag[0] if kept.pop() else ""
        elif tag[0] != "<g/>":
            yield tag[0]
    yield svg[at:]


def _pack(style: str) -> str:
    return re.sub(r"([:;]) ", r"\1", style)
