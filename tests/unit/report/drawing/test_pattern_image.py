"""Pictures of patterns: what a cell's colour says, and files that are the same for the same squares."""

from __future__ import annotations

import io
from typing import get_args
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from efficient_attn.report.drawing.pattern_image import ImageFormat, PatternImage, colour_cells, render_patterns

WHITE, BLUE = (1.0, 1.0, 1.0), "#0000ff"
MARKS: dict[ImageFormat, bytes] = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def square(n: int = 12, *, causal: bool = True, caption: str = "N = 12") -> PatternImage:
    i, j = np.arange(n)[:, None], np.arange(n)
    return PatternImage((abs(i - j) <= 2) & (j <= i), n, "a <b> $c", caption, BLUE, causal)


def test_a_cell_is_the_deeper_the_more_of_it_is_kept() -> None:
    shown = colour_cells(np.array([[0, 1 / 64], [0.5, 1]]), BLUE, causal=False)
    assert tuple(shown[0, 0]) == WHITE
    assert tuple(shown[1, 1]) == (0, 0, 1)
    assert 1 > shown[0, 1, 0] > shown[1, 0, 0] > 0
    assert shown[0, 1, 0] < 0.6, "one pair in a large cell is seen"


def test_the_future_is_grey_where_all_of_a_cell_lies_in_it() -> None:
    shown = colour_cells(np.zeros((3, 3), bool), BLUE, causal=True)
    white = (shown == 1).all(axis=2)
    assert np.array_equal(white, np.tril(np.ones((3, 3), bool)))
    assert (colour_cells(np.zeros((3, 3), bool), BLUE, causal=False) == 1).all()


def test_booleans_and_shares_are_drawn_alike() -> None:
    kept = square().coverage
    assert np.array_equal(colour_cells(kept, BLUE, causal=True), colour_cells(kept.astype(float), BLUE, causal=True))


@pytest.mark.parametrize("form", get_args(ImageFormat))
def test_same_squares_give_the_same_file(form: ImageFormat) -> None:
    one, other = (render_patterns([square(), square(300)], "$two$", form) for _ in range(2))
    assert one == other
    assert one.startswith(MARKS[form])


def test_an_svg_keeps_its_words() -> None:
    picture = ElementTree.fromstring(render_patterns([square(caption="N = 12, keeps 1%")], "a title", "svg"))
    said = {"".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a title", "a <b> $c", "N = 12, keeps 1%", "query", "key", "0", "6", "12"} <= said


def test_squares_stand_in_rows_and_long_captions_make_room() -> None:
    def size(*squares: PatternImage, columns: int = 3) -> tuple[int, int]:
        height, width = imread(io.BytesIO(render_patterns(squares, "t", "png", columns=columns))).shape[:2]
        return width, height

    wide, high = size(square())
    assert size(square(), square()) == (pytest.approx(2 * wide, abs=1), high)
    assert size(*[square()] * 4)[1] > 1.8 * high
    assert size(square(caption="option=1, " * 9))[1] > high
