"""Images of patterns: colours of cells, reproducible files, text and layout."""

from __future__ import annotations

import io
from typing import get_args
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from efficient_attn.report.drawing.figures import FigureFormat
from efficient_attn.report.drawing.pattern_image import PatternImage, colour_cells, render_patterns

WHITE, BLUE = (1.0, 1.0, 1.0), "#0000ff"
MARKS: dict[FigureFormat, bytes] = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def make_image(n: int = 12, *, causal: bool = True, caption: str = "N = 12") -> PatternImage:
    i, j = np.arange(n)[:, None], np.arange(n)
    return PatternImage((abs(i - j) <= 2) & (j <= i), n, "a <b> $c", caption, BLUE, causal)


def test_cells_that_keep_more_pairs_are_darker() -> None:
    shown = colour_cells(np.array([[0, 1 / 64], [0.5, 1]]), BLUE, causal=False)
    assert tuple(shown[0, 0]) == WHITE
    assert tuple(shown[1, 1]) == (0, 0, 1)
    assert 1 > shown[0, 1, 0] > shown[1, 0, 0] > 0
    assert shown[0, 1, 0] < 0.6, "one pair in a large cell is visible"


def test_cells_entirely_in_the_future_are_grey() -> None:
    shown = colour_cells(np.zeros((3, 3), bool), BLUE, causal=True)
    white = (shown == 1).all(axis=2)
    assert np.array_equal(white, np.tril(np.ones((3, 3), bool)))
    assert (colour_cells(np.zeros((3, 3), bool), BLUE, causal=False) == 1).all()


def test_booleans_and_shares_give_equal_colours() -> None:
    kept = make_image().coverage
    assert np.array_equal(colour_cells(kept, BLUE, causal=True), colour_cells(kept.astype(float), BLUE, causal=True))


@pytest.mark.parametrize("form", get_args(FigureFormat))
def test_rendering_is_reproducible(form: FigureFormat) -> None:
    first, second = (render_patterns([make_image(), make_image(300)], "$two$", form) for _ in range(2))
    assert first == second
    assert first.startswith(MARKS[form])


def test_svg_keeps_text() -> None:
    picture = ElementTree.fromstring(render_patterns([make_image(caption="N = 12, keeps 1%")], "a title", "svg"))
    texts = {"".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a title", "a <b> $c", "N = 12, keeps 1%", "query", "key", "0", "6", "12"} <= texts


def test_images_wrap_into_rows_and_long_captions_add_height() -> None:
    def size(*images: PatternImage) -> tuple[int, int]:
        height, width = imread(io.BytesIO(render_patterns(images, "t", "png"))).shape[:2]
        return width, height

    wide, high = size(make_image())
    assert size(make_image(), make_image()) == (pytest.approx(2 * wide, abs=1), high)
    assert size(*[make_image()] * 4)[1] > 1.8 * high
    assert size(make_image(caption="option=1, " * 9))[1] > high
