"""Cells of tables: crossovers, exponents, errors and verification lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from efficient_attn import units
from efficient_attn.report import select, tables
from efficient_attn.results.stats import Estimate
from efficient_attn.units import EMPTY, INTERVAL_DASH

NAN = float("nan")


def series(lengths: list[int], lows: list[float], **columns: list[float]) -> dict[str, Any]:
    """Columns of one variant. lows: lower ends of its speedups, NaN where the baseline was not measured."""
    defaults = {"seq_len": lengths, "speedup_low": lows}
    defaults |= {name: [low + offset for low in lows] for name, offset in (("speedup", 0.05), ("speedup_high", 0.09))}
    return {name: np.array(values, dtype=float) for name, values in {**defaults, **columns}.items()}


@pytest.mark.parametrize(
    ("backend", "choices", "text"),
    [
        ("parts", "tiles=cpp", "parts, tiles in C++"),
        ("sdpa", "decode=cpp,fold half=float32", "sdpa, decode in C++"),
        ("blocks", "decode=cpp products=by_head tiles=cpp", "blocks, decode and tiles in C++"),
        ("chunked", "scan=torch", "chunked"),
        ("chunked", "scan=cpp step=triton", "chunked, scan in C++, step in Triton"),
        ("cpp", NAN, "cpp"),
        ("dense", None, "dense"),
        (None, "tiles=cpp", EMPTY),
        (NAN, None, EMPTY),
    ],
)
def test_backends_name_what_ran_in_native_code(backend: Any, choices: Any, text: str) -> None:
    assert tables.describe_backend({"backend_used": backend, "choices": choices}) == text


@pytest.mark.parametrize(
    ("lengths", "lows", "text"),
    [
        ([256, 512, 1024], [1.1, 2.0, 3.0], "<=256"),
        ([256, 512, 1024], [0.5, 0.9, 1.2], f"512{INTERVAL_DASH}1K"),
        ([1024, 256, 512], [1.2, 0.5, 0.9], f"512{INTERVAL_DASH}1K"),
        ([256, 512, 1024], [1.5, 0.9, 1.2], f"512{INTERVAL_DASH}1K"),
        ([256, 1024, 4096], [0.5, 0.6, 0.9], "none up to 4K"),
        ([256, 1024, 4096], [1.5, 1.6, 0.9], "only at 256 and 1K"),
        ([1024, 8192, 65536], [NAN, 1.5, NAN], "at 8K"),
        ([1024, 65536], [NAN, NAN], EMPTY),
        ([], [], EMPTY),
    ],
)
def test_crossovers_name_measured_lengths(lengths: list[int], lows: list[float], text: str) -> None:
    assert tables.show_crossover({"is_baseline": False}, series(lengths, lows)).text == text


def test_speedups_without_an_interval_are_ignored() -> None:
    columns = series([256, 512], [NAN, 1.2])
    columns["speedup"] = np.array([5.0, 1.3])
    assert tables.show_crossover({"is_baseline": False}, columns).text == "at 512"
    assert tables.show_crossover({"is_baseline": True}, columns).text == EMPTY


def test_crossovers_sort_by_length() -> None:
    sort_keys = [
        tables.show_crossover({"is_baseline": False}, series([256, 512], lows)).sort for lows in ([2, 3], [0.5, 3])
    ]
    assert sort_keys == [256, 512]
    assert tables.show_crossover({"is_baseline": False}, series([256], [0.5])).sort == float("inf")


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ([1.0, 2.0, 4.01, 8.0], f"1.00 (1.00{INTERVAL_DASH}1.00)"),
        ([1.0, 4.0, 4.0, 4.0], "unclear"),
        ([1.0, 2.0], "1.00"),
        ([1.0], EMPTY),
        ([1.0, 1.0, 0.9999, 1.0], f"0.00 (0.00{INTERVAL_DASH}0.00)"),
    ],
)
def test_imprecise_exponents_are_unclear(times: list[float], text: str) -> None:
    lengths = [256 * 2**i for i in range(len(times))]
    columns = series(lengths, [NAN] * len(times), latency_ms=times)
    assert tables.show_growth(columns, "latency_ms").text == text


def test_exponent_intervals_up_to_half_are_precise() -> None:
    assert select.is_precise_growth(Estimate(1.0, 0.75, 1.25))
    assert not select.is_precise_growth(Estimate(1.0, 0.75, 1.26))


def row(variant: str, **columns: Any) -> dict[str, Any]:
    return {"label": variant, "variant": variant, "error": None, "seq_len": 8192} | columns


def test_errors_are_numbers_exact_or_not_measured() -> None:
    assert tables.show_error(row("linear")).text == "not measured"
    assert tables.show_error(row("linear", error=0.62)) == tables.ReportCell("0.620", 0.62)
    assert tables.show_error(row("full:backend=cpp")).text == "exact"
    assert tables.describe_error_source([row("linear")]) == "Errors against exact attention were not measured."
    assert tables.describe_error_source(
        [row("linear", error=0.5, error_on="minilm", error_how="float32"), row("mqa")]
    ) == ("Relative errors: minilm, float32.")


def test_verification_lengths_are_reported_if_they_differ() -> None:
    rows = [row("linear", gate_len=8192), row("reformer", gate_len=1024), row("mla", gate_len=256)]
    sentence = "Compared with their oracles at another length than the timed one: mla at 256; reformer at 1024."
    assert tables.describe_verification_lengths([*rows, row("strided", gate_len=None)]) == sentence
    assert tables.describe_verification_lengths([row("linear", gate_len=8192)]) == ""


def test_missing_columns_are_empty() -> None:
    (values,) = tables.list_row_values(pd.DataFrame({"label": ["full"]}))
    assert values["label"] == "full"
    assert values["gate_len"] is None
    assert units.is_present(values["error"]) is False
