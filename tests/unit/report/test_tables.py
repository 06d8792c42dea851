"""Cells that cannot be misread: from where on a variant is faster, how its cost grows, what it loses."""

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
    """A variant's columns: its speedups' lower ends, NaN where the baseline was not measured."""
    known = {"seq_len": lengths, "speedup_low": lows}
    known |= {name: [low + wide for low in lows] for name, wide in (("speedup", 0.05), ("speedup_high", 0.09))}
    return {name: np.array(values, dtype=float) for name, values in {**known, **columns}.items()}


@pytest.mark.parametrize(
    ("lengths", "lows", "said"),
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
def test_faster_from_tells_what_was_measured(lengths: list[int], lows: list[float], said: str) -> None:
    assert tables.show_crossover({"is_baseline": False}, series(lengths, lows)).text == said


def test_speedups_without_an_interval_show_nothing() -> None:
    own = series([256, 512], [NAN, 1.2])
    own["speedup"] = np.array([5.0, 1.3])
    assert tables.show_crossover({"is_baseline": False}, own).text == "at 512"
    assert tables.show_crossover({"is_baseline": True}, own).text == EMPTY


def test_lengths_are_sorted_by_where_a_variant_becomes_faster() -> None:
    places = [
        tables.show_crossover({"is_baseline": False}, series([256, 512], lows)).sort for lows in ([2, 3], [0.5, 3])
    ]
    assert places == [256, 512]
    assert tables.show_crossover({"is_baseline": False}, series([256], [0.5])).sort == float("inf")


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([1.0, 2.0, 4.01, 8.0], f"1.00 (1.00{INTERVAL_DASH}1.00)"),
        ([1.0, 4.0, 4.0, 4.0], "unclear"),
        ([1.0, 2.0], "1.00"),
        ([1.0], EMPTY),
        ([1.0, 1.0, 0.9999, 1.0], f"0.00 (0.00{INTERVAL_DASH}0.00)"),
    ],
)
def test_an_exponent_is_printed_only_where_it_is_one(times: list[float], said: str) -> None:
    lengths = [256 * 2**i for i in range(len(times))]
    own = series(lengths, [NAN] * len(times), latency_ms=times)
    assert tables.show_growth(own, "latency_ms").text == said


def test_an_interval_of_half_an_exponent_is_still_clear() -> None:
    assert select.is_precise_growth(Estimate(1.0, 0.75, 1.25))
    assert not select.is_precise_growth(Estimate(1.0, 0.75, 1.26))


def row(variant: str, **known: Any) -> dict[str, Any]:
    return {"label": variant, "variant": variant, "error": None, "seq_len": 8192} | known


def test_an_error_that_was_not_measured_says_so() -> None:
    assert tables.show_error(row("linear")).text == "not measured"
    assert tables.show_error(row("linear", error=0.62)) == tables.ReportCell("0.620", 0.62)
    assert tables.show_error(row("full:backend=cpp")).text == "exact"
    assert tables.describe_error_source([row("linear")]) == "Errors against exact attention were not measured."
    assert tables.describe_error_source(
        [row("linear", error=0.5, error_on="minilm", error_how="float32"), row("mqa")]
    ) == ("Errors were measured on minilm, float32.")


def test_lengths_at_which_outputs_were_verified_are_reported_where_they_differ() -> None:
    found = [row("linear", gate_len=8192), row("reformer", gate_len=1024), row("mla", gate_len=256)]
    said = "Compared with their oracles at another length than the timed one: mla at 256; reformer at 1024."
    assert tables.describe_verification_lengths([*found, row("strided", gate_len=None)]) == said
    assert tables.describe_verification_lengths([row("linear", gate_len=8192)]) == ""


def test_what_rows_do_not_have_is_empty() -> None:
    (shown,) = tables.list_row_values(pd.DataFrame({"label": ["full"]}))
    assert shown["label"] == "full"
    assert shown["gate_len"] is None
    assert units.is_present(shown["error"]) is False
