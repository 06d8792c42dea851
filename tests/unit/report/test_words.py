"""Claims in words."""

from __future__ import annotations

from typing import Any

import pytest

from efficient_attn.report import words
from efficient_attn.units import TO


def plain(text: str) -> str:
    return text.replace(TO, "-")


def row(label: str, value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"label": label, "speedup": value, "speedup_low": low, "speedup_high": high}


def test_a_difference_is_claimed_only_where_the_interval_excludes_1() -> None:
    rows = [row("a", 24.1, 23, 25.3), row("b", 0.5, 0.4, 0.625), row("c", 1.1, 0.9, 1.3), row("d", 3.0, None, None)]
    said = plain(words.claim(rows, "full"))
    assert "a is 24.1x (23.0-25.3) faster than full" in said
    assert "b is 2.00x (1.60-2.50) slower than full" in said
    assert "no difference is shown for c" in said
    assert "measured without an interval, so nothing is said for d" in said


def test_long_claims_say_how_many_they_left_out() -> None:
    rows = [row(f"v{i}", 2.0 + i, 1.9 + i, 2.1 + i) for i in range(5)]
    assert plain(words.claim(rows, "full", most=2)).startswith("v4 is 6.00x (5.90-6.10) faster than full, v3 is 5.00x")
    assert words.claim(rows, "full", most=2).endswith("3 more differ")


@pytest.mark.parametrize(
    ("fill", "said"), [("packed", " \u00b7 rows of drawn lengths, packed"), ("full", ""), (None, "")]
)
def test_a_setting_says_how_full_its_rows_are_where_they_are_not(fill: str | None, said: str) -> None:
    assert words.setting_words({"device": "cpu", "fill": fill}, {}) == f"cpu{said}"
