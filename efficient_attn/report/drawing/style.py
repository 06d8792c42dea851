"""Colors and markers of mechanisms, so that all charts agree: a family has a color, a mechanism a marker.

The colors keep apart under simulated color blindness and contrast with the background (3 or more), on light and on dark
pages; a test checks both. The options of a mechanism differ in fill and dashes.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

from ...spec import list_names
from ...variants import CATALOGUE

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
DASH_PATTERNS = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 3)))
INK, FAINT, GRID = "#1b1f24", "#6a737d", "#e3e6ea"
FAMILY_COLOURS = {
    "full": INK,
    "sparse": "#5790f7",
    "linear": "#a32204",
    "low_rank": "#3f7c5f",
    "hashed": "#853677",
    "shared_kv": "#bd8832",
    "other": "#7234db",  # plug-ins without a family, and rows that are not mechanisms
    "selected": "#ff4992",
    "recurrent": "#440066",
}
COLOURS = tuple(colour for colour in FAMILY_COLOURS.values() if colour != INK)
# each color of a chart with the class that the style sheet gives to it, and its counterpart on dark pages
CLASSES = {INK: "i", FAINT: "q", GRID: "g", "#ffffff": "w"} | {colour: f"k{i}" for i, colour in enumerate(COLOURS)}
DARK_COLOURS = (
    {INK: "#e4e7eb", FAINT: "#9aa3ad", GRID: "#343a42", "#ffffff": "#ffffff"}
    | dict(zip(COLOURS, ("#2c73a5", "#e55a17", "#6fb381", "#fa95d5", "#fbda30", "#aa6ffa", "#9e5561", "#66ee99"),
               strict=True))
)  # fmt: skip
CARD, DARK_CARD = "#ffffff", "#1a1e23"  # backgrounds

# The index of a name within its family determines its marker: append new names, never sort or remove.
# fmt: off
MECHANISM_ORDER = (
    "sliding_window", "linear", "mqa", "gqa", "performer", "longformer", "bigbird", "dilated_window", "global_tokens",
    "random_blocks", "strided", "fixed", "attention_sinks", "random_feature", "cosformer", "relu_linear", "taylor",
    "retention", "linformer", "reformer", "nystromformer", "mla", "dot", "general", "additive", "cosine", "luong_local",
    "topk", "block_topk", "quest", "vertical_slash", "knorm", "lightning", "mamba2", "gla", "delta_net",
    "gated_delta_net", "kda", "delta_product", "forgetting", "differential", "sigmoid",
    "moba", "nsa", "dsa",
)
# fmt: on
_FAMILIES = {entry.name: entry.family for entry in CATALOGUE}


class LineStyle(NamedTuple):
    """Style of a variant; hollow markers and dashes distinguish variants of the same mechanism."""

    colour: str
    marker: str
    dashes: Any
    hollow: bool


LineStyles: TypeAlias = Mapping[str, LineStyle]  # by label
NULL_STYLE = LineStyle(FAINT, "", (0, (4, 3)), False)


def name_mechanism(label: str) -> str:
    """The name without options; of a union, the names of all parts."""
    return "|".join(list_names(label))


def choose_colour_and_marker(name: str, family: str = "") -> tuple[str, str]:
    """Color and marker of a mechanism; a union is of the family of its first part.

    family: of a name that is not built in. Its marker is determined by a hash.
    """
    family = _FAMILIES.get(name.partition("|")[0], family)
    colour = FAMILY_COLOURS.get(family, FAMILY_COLOURS["other"])
    if name in _FAMILIES:
        siblings = [sibling for sibling in ("full", *MECHANISM_ORDER) if _FAMILIES.get(sibling) == family]
        return colour, MARKERS[siblings.index(name) % len(MARKERS)]
    return colour, MARKERS[zlib.crc32(name.encode()) % len(MARKERS)]


def choose_line_styles(labels: Iterable[str], families: Mapping[str, str] | None = None) -> dict[str, LineStyle]:
    """The line style of each variant of a report.

    Names that are not built in move on to the next marker that their color has free; variants with the same color and
    marker differ in dashes and fill. families: by label.
    """
    pairs: dict[str, tuple[str, str]] = {}
    ranks: Counter[tuple[str, str]] = Counter()
    look_by_label = {}
    ordered = sorted(set(labels), key=make_natural_sort_key)
    for label in sorted(ordered, key=lambda label: name_mechanism(label) not in _FAMILIES):
        name = name_mechanism(label)
        if name not in pairs:
            family = (families or {}).get(label)
            colour, marker = choose_colour_and_marker(name, family if isinstance(family, str) else "")
            if name not in _FAMILIES:
                start = MARKERS.index(marker)
                free = (x for x in MARKERS[start:] + MARKERS[:start] if (colour, x) not in pairs.values())
                marker = next(free, marker)
            pairs[name] = colour, marker
        rank = ranks[pairs[name]]
        ranks[pairs[name]] += 1
        look_by_label[label] = LineStyle(*pairs[name], DASH_PATTERNS[rank % len(DASH_PATTERNS)], rank % 2 == 1)
    return look_by_label


def make_natural_sort_key(label: str) -> list[tuple[int, str]]:
    """Sort key that compares numbers by value: window=64 comes before window=128."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", label)]


def make_chart_sheet() -> str:
    """The style sheet that all charts of a page share: light colors, and dark ones if the reader prefers them."""
    rules = resources.files("efficient_attn.report").joinpath("templates/chart.css").read_text("utf-8")
    light, dark = _format_colours({x: x for x in CLASSES}, CARD), _format_colours(DARK_COLOURS, DARK_CARD)
    return f"{rules}{light}@media (prefers-color-scheme:dark){{{dark}}}\n"


def _format_colours(colours: Mapping[str, str], card: str) -> str:
    rules = "".join(f".chart .{name}{{color:{colours[colour]}}}" for colour, name in CLASSES.items())
    return f".chart{{color:{colours[INK]}}}{rules}.chart .h{{fill:{card}}}"
