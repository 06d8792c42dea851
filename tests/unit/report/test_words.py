"""Numbers and claims in words."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from efficient_attn.report import words


def plain(text: str) -> str:
    return text.replace(words.TO, "-")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.1234, "0.123"),
        (9.999, "10.0"),
        (99.96, "100"),
        (1234.5, "1234"),
        (1e-7, "1.00e-07"),
        (3e6, "3.00e+06"),
    ],
)
def test_three_digits(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize("empty", [None, float("nan"), pd.NA])
def test_empty_cells_are_a_dash(empty: Any) -> None:
    says = (words.number, words.duration, words.size, words.rate, words.ratio, words.power, words.percent)
    assert {say(empty) for say in says} == {words.NONE}


def test_units() -> None:
    assert words.duration(0.012) == "12.0 µs"
    assert words.duration(0.9999) == "1.00 ms"
    assert plain(words.duration(1500, 1400, 1600)) == "1.50 s (1.40-1.60)"
    assert words.size(512) == "512 B"
    assert words.size(1536) == "1.50 KiB"
    assert words.size(3 * 2**30) == "3.00 GiB"
    assert words.rate(12345) == "12.3 k"
    assert [words.short_length(n) for n in (512, 1000, 1024, 1536, 8192, 2**20)] == [
        "512",
        "1000",
        "1K",
        "1536",
        "8K",
        "1M",
    ]
    budgets = (16 * 10**9, 1.5e9, 2**29, 16 * 2**30, 1234567, 1000, 999)
    assert [words.budget(n) for n in budgets] == [
        "16 GB", "1.5 GB", "512 MiB", "16.0 GiB", "1.18 MiB", "1 kB", "999 B",
    ]  # fmt: skip
    assert words.power(0.5, -0.1, 1.1) == "0.50 (-0.10 to 1.10)"


@pytest.mark.parametrize(("share", "text"), [(0.0312, "3.12%"), (1.0, "100%"), (0.99999, "99.9%"), (1e-4, "0.0100%")])
def test_a_share_is_all_only_where_it_is_all(share: float, text: str) -> None:
    assert words.percent(share) == text


def row(label: str, value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"label": label, "speedup": value, "speedup_low": low, "speedup_high": high}


def test_a_difference_is_claimed_only_where_the_interval_excludes_1() -> None:
    rows = [row("a", 24.1, 23, 25.3), row("b", 0.5, 0.4, 0.625), row("c", 1.1, 0.9, 1.3), row("d", 3.0, None, None)]
    said = plain(words.claims(rows, "full"))
    assert "a is 24.1x (23.0-25.3) faster than full" in said
    assert "b is 2.00x (1.60-2.50) slower than full" in said
    assert "no difference is shown for c" in said
    assert "measured without an interval, so nothing is said for d" in said


def test_long_claims_say_how_many_they_left_out() -> None:
    rows = [row(f"v{i}", 2.0 + i, 1.9 + i, 2.1 + i) for i in range(5)]
    assert plain(words.claims(rows, "full", most=2)).startswith("v4 is 6.00x (5.90-6.10) faster than full, v3 is 5.00x")
    assert words.claims(rows, "full", most=2).endswith("3 more differ")
