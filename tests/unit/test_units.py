"""Parsing and formatting numbers, sizes and times."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest

from efficient_attn import units
from efficient_attn.errors import UsageError


def plain(text: str) -> str:
    return text.replace(units.INTERVAL_DASH, "-")


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
    assert units.number(value) == text


@pytest.mark.parametrize("empty", [None, float("nan"), pd.NA, pd.NaT, np.nan])
def test_empty_cells_are_a_dash(empty: Any) -> None:
    formatters = (
        units.number,
        units.duration,
        units.seconds,
        units.size,
        units.rate,
        units.ratio,
        units.exponent_interval,
    )
    formatters += (units.percent, units.integer)
    assert {format_(empty) for format_ in formatters} == {units.EMPTY}
    assert {units.format_value(empty, unit) for unit in get_args(units.Unit)} == {units.EMPTY}


def test_units() -> None:
    assert units.duration(0.012) == "12.0 \u00b5s"
    assert units.duration(0.9999) == "1.00 ms"
    assert plain(units.duration(1500, 1400, 1600)) == "1.50 s (1.40-1.60)"
    assert units.size(512) == "512 B"
    assert units.size(1536) == "1.50 KiB"
    assert units.size(3 * 2**30) == "3.00 GiB"
    assert units.rate(12345) == "12.3 k"
    assert [units.short_length(n) for n in (512, 1000, 1024, 1536, 8192, 2**20)] == [
        "512",
        "1000",
        "1K",
        "1536",
        "8K",
        "1M",
    ]
    budgets = (16 * 10**9, 1.5e9, 2**29, 16 * 2**30, 1234567, 1000, 999)
    assert [units.budget(n) for n in budgets] == [
        "16 GB", "1.5 GB", "512 MiB", "16.0 GiB", "1.18 MiB", "1 kB", "999 B",
    ]  # fmt: skip
    assert units.exponent_interval(0.5, -0.1, 1.1) == "0.50 (-0.10 to 1.10)"
    assert units.exponent_interval(-0.001, -0.004, 0.004) == "0.00 (0.00\u20130.00)", "nothing is minus zero"


@pytest.mark.parametrize(
    ("share", "text"), [(0.0312, "3.12%"), (1.0, "100%"), (0.99999, "99.9%"), (1e-4, "0.0100%"), (1.25, "125%")]
)
def test_a_share_is_100_percent_only_for_all(share: float, text: str) -> None:
    assert units.percent(share) == text


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("time", 1500.0, "1.50 s"), ("seconds", 0.0015, "1.50 ms"), ("bytes", 2**20, "1.00 MiB"), ("ratio", 2, "2.00x"),
        ("share", 0.5, "50.0%"), ("error", 1e-7, "1.00e-07"), ("count", 65536, "65,536"), ("count", 2.5, "2.50"),
        ("number", 3, "3.00"), ("number", "text", "text"), ("time", True, "yes"), ("count", False, "no"),
    ],
)  # fmt: skip
def test_a_value_is_written_in_its_unit(unit: Any, value: Any, text: str) -> None:
    assert units.format_value(value, unit) == text


def test_every_unit_has_a_formatter() -> None:
    assert set(units.FORMATTERS) == set(get_args(units.Unit))


def test_estimates_have_few_digits() -> None:
    assert [units.rough_duration(s) for s in (0.2, 59.7, 130.4, 119, 3599, 3900)] == [
        "1 s", "1 min", "2 min 10 s", "2 min", "1 h", "1 h 5 min",
    ]  # fmt: skip
    assert [units.rough_size(n) for n in (1, 5 * 2**20, 1.3 * 2**30)] == ["1 MiB", "5 MiB", "1.3 GiB"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GB", 8 * 10**9), ("8gb", 8 * 10**9), ("8G", 8 * 10**9), ("8Gi", 2**33), ("512MiB", 2**29),
        (" 512 mib ", 2**29), ("2e9", 2 * 10**9), ("2E3k", 2 * 10**6), ("1.5GiB", 3 * 2**29),
        ("1TB", 10**12), ("1000B", 1000), ("1", 1),
    ],
)  # fmt: skip
def test_sizes_are_parsed(text: str, count: int) -> None:
    assert units.parse_size(text) == count


@pytest.mark.parametrize(
    "text",
    [
        *("", "GB", "-1GB", "0", "0.1", "1e400", "8XB", "8GB more", "8 bit", "8Gbit", "1PB", "1.2.3", "1_000", "nan"),
        "1e19",
    ],
)  # fmt: skip
def test_invalid_sizes_are_reported(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a size such as 8GB, 512MiB or 2e9$"):
        units.parse_size(text)


def test_units_import_nothing_heavy() -> None:
    code = "import sys, efficient_attn.units; print(*{'torch', 'pandas', 'numpy', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
