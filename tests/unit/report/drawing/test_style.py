"""Families have colors that readers can tell apart, mechanisms have markers."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from efficient_attn.report.drawing import style
from efficient_attn.variants import CATALOGUE

ROOT = Path(__file__).parents[4]
MIN_DISTANCE = 12.0  # in CAM02-UCS; 1 is just noticeable side by side
MODES = {
    "light": (style.CARD, {colour: colour for colour in style.CLASSES}),
    "dark": (style.DARK_CARD, style.DARK_COLOURS),
}


def luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", MODES)
def test_colours_contrast_with_their_background(mode: str) -> None:
    """WCAG requires a contrast of 3 for graphics and 4.5 for small text."""
    background, colours = MODES[mode]
    for colour in (*style.FAMILY_COLOURS.values(), style.FAINT):
        assert contrast(colours[colour], background) >= 3, colour
    for text in (style.INK, style.FAINT):
        assert contrast(colours[text], background) >= 4.5, text


@pytest.mark.parametrize("deficiency", ["none", "deuteranomaly", "protanomaly", "tritanomaly"])
@pytest.mark.parametrize("mode", MODES)
def test_families_differ_for_color_blind_readers(mode: str, deficiency: str) -> None:
    colorspacious: Any = pytest.importorskip("colorspacious")
    _, colours = MODES[mode]
    shown = {name: np.array(to_rgb(colours[colour])) for name, colour in style.FAMILY_COLOURS.items()}
    if deficiency != "none":
        space = {"name": "sRGB1+CVD", "cvd_type": deficiency, "severity": 100}
        shown = {name: np.clip(colorspacious.cspace_convert(c, space, "sRGB1"), 0, 1) for name, c in shown.items()}
    for first, other in combinations(shown, 2):
        distance = colorspacious.deltaE(shown[first], shown[other], input_space="sRGB1")
        assert distance >= MIN_DISTANCE, (first, other)


def test_mechanisms_of_a_family_differ_without_color() -> None:
    pairs = {name: style.choose_colour_and_marker(name) for name in ("full", *style.MECHANISM_ORDER)}
    assert set(pairs) == {entry.name for entry in CATALOGUE}
    assert len(set(pairs.values())) == len(pairs)
    for entry in CATALOGUE:
        assert pairs[entry.name][0] == style.FAMILY_COLOURS[entry.family]


def test_colours_of_mechanisms_are_fixed() -> None:
    assert style.choose_colour_and_marker("full") == ("#1b1f24", "o")
    assert style.choose_colour_and_marker("sliding_window") == ("#5790f7", "o")
    assert style.choose_colour_and_marker("longformer") == ("#5790f7", "s")
    assert style.choose_colour_and_marker("sliding_window|global_tokens")[0] == "#5790f7"
    assert style.choose_colour_and_marker("linear") == ("#a32204", "o")
    assert style.choose_colour_and_marker("mine")[0] == style.FAMILY_COLOURS["other"]
    assert style.choose_colour_and_marker("mine", "hashed")[0] == style.FAMILY_COLOURS["hashed"]
    assert style.choose_colour_and_marker("mine", "magic")[0] == style.FAMILY_COLOURS["other"]


def test_unknown_names_have_the_same_style_in_every_process() -> None:
    code = "from efficient_attn.report.drawing import style; print(style.choose_colour_and_marker('my_own'))"
    processes = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        for seed in ("1", "2")
    ]
    assert {process.stdout.strip() for process in processes} == {str(style.choose_colour_and_marker("my_own"))}


def test_plug_ins_of_a_family_differ_from_each_other_and_from_built_in_ones() -> None:
    labels = ["reformer", *(f"mine{i}:n={i}" for i in range(8))]
    line_styles = style.choose_line_styles(labels, dict.fromkeys(labels, "hashed") | {"mine3:n=3": float("nan")})
    hashed = [line_styles[label] for label in labels if label != "mine3:n=3"]
    assert {one.colour for one in hashed} == {style.FAMILY_COLOURS["hashed"]}
    assert len({one.marker for one in hashed}) == len(hashed)
    assert line_styles["mine3:n=3"].colour == style.FAMILY_COLOURS["other"], "its family is not known"


def test_variants_of_a_mechanism_share_its_colour_but_not_its_line() -> None:
    labels = [f"sliding_window:window={w}" for w in (64, 128, 256)]
    line_styles = style.choose_line_styles([*labels, "full", "full:backend=dense", "linear (kv_heads=2)"])
    assert len({(line_styles[name].colour, line_styles[name].marker) for name in labels}) == 1
    assert len({str(line_styles[name]) for name in labels}) == 3
    assert line_styles["full"].colour == line_styles["full:backend=dense"].colour
    assert line_styles["full"] != line_styles["full:backend=dense"]
    assert line_styles["linear (kv_heads=2)"].colour == style.choose_colour_and_marker("linear")[0]
    assert line_styles[labels[0]].dashes == "-", "the smallest window comes first, in numerical order"


def test_labels_that_are_not_specs_have_styles() -> None:
    names = style.name_mechanism("global_tokens:n=2|sliding_window:window=8 (kv_heads=2)")
    assert names == "global_tokens|sliding_window"
    assert style.name_mechanism("mine: a trial") == "mine"
    assert set(style.choose_line_styles(["", "a:b", "a:=1|c"])) == {"", "a:b", "a:=1|c"}


def test_the_style_sheet_has_every_class_in_both_modes() -> None:
    light, dark = style.make_chart_sheet().split("@media (prefers-color-scheme:dark)")
    for colour, name in style.CLASSES.items():
        assert f".chart .{name}{{color:{colour}}}" in light
        assert f".chart .{name}{{color:{style.DARK_COLOURS[colour]}}}" in dark
