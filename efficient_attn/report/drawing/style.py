"""Colors and markers of mechanisms, determined by the name, so that all plots of all reports agree.

The colors are those of Okabe and Ito (without yellow, and with darker orange and sky blue for a contrast of 3 on white)
and three of Tol's; all are safe for color blindness. Nine colors and ten markers are coprime, so that ninety
consecutive names differ.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ...spec import list_names

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6F4E9C", "#B97F00", "#3A93CC", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
DASH_PATTERNS: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.4)),
    (0, (6, 2, 1, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 3)),
)
INK, FAINT, GRID = "#1b1f24", "#6a737d", "#e3e6ea"

# The index of a name determines its line style: append new names, never sort or remove.
# fmt: off
MECHANISM_ORDER = (
    "sliding_window", "linear", "mqa", "gqa", "performer", "longformer", "bigbird", "dilated_window", "global_tokens",
    "random_blocks", "strided", "fixed", "attention_sinks", "random_feature", "cosformer", "relu_linear", "taylor",
    "retention", "linformer", "reformer", "nystromformer", "mla", "dot", "general", "additive", "cosine", "luong_local",
)
# fmt: on


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


def choose_colour_and_marker(name: str) -> tuple[str, str]:
    """Color and marker of a mechanism: black for full attention; for unknown names, by hash."""
    if name == "full":
        return INK, "o"
    index = (
        MECHANISM_ORDER.index(name)
        if name in MECHANISM_ORDER
        else zlib.crc32(name.encode()) % (len(COLOURS) * len(MARKERS))
    )
    return COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]


def choose_line_styles(labels: Iterable[str]) -> dict[str, LineStyle]:
    """The line style of each variant of a report. Variants with the same color and marker differ in dashes and fill."""
    rank_by_pair: dict[tuple[str, str], int] = {}
    look_by_label = {}
    for label in sorted(set(labels), key=make_natural_sort_key):
        pair = choose_colour_and_marker(name_mechanism(label))
        rank = rank_by_pair.get(pair, 0)
        rank_by_pair[pair] = rank + 1
        look_by_label[label] = LineStyle(*pair, DASH_PATTERNS[rank % len(DASH_PATTERNS)], rank % 2 == 1)
    return look_by_label


def make_natural_sort_key(label: str) -> list[tuple[int, str]]:
    """Sort key that compares numbers by value: window=64 comes before window=128."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", label)]
