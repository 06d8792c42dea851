"""The approximation section: errors, attention weights, and rows of older runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn import units
from efficient_attn.report.write import write_report
from efficient_attn.results.rows import Record

pytestmark = pytest.mark.slow

NEWER_COLUMNS = {"gradient_cosine": 0.912, "spread_over_heads": 0.034, "sink_mass": 0.456, "own_sink_mass": 0.123}


def fidelity_record(
    variant: str, error: float, layer: int, n: int = 8192, budget: str | None = None, **extra: Any
) -> Record:
    row = runs.row(
        variant, task="fidelity", inputs="mine@1", seq_len=n, causal=True, layer=layer, relative_error=error,
        oracle_error=1e-7, total_variation=0.25, missed_mass=0.125, effective_keys=60.0, cosine_similarity=0.9,
        budget=budget,
    )  # fmt: skip
    row.extra = extra
    return Record(row, {"mean_value_error": 0.8})


def report(folder: Path, records: Iterable[Record]) -> str:
    return write_report([runs.write_run(folder / "run", records)], folder / "out").markdown.read_text()


def table(text: str, caption: str) -> dict[str, dict[str, str]]:
    rows = text.partition(f"**{caption}")[2].partition("**\n\n")[2].partition("\n\n")[0].splitlines()
    names, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in rows)
    return {line[0]: dict(zip(names, line, strict=True)) for line in lines}


def test_errors_and_weights_have_separate_tables(tmp_path: Path) -> None:
    variants = {"linear": 0.6, "strided": 0.4}
    text = report(
        tmp_path,
        [fidelity_record(v, e, n, weight_rows=2048, **NEWER_COLUMNS) for v, e in variants.items() for n in (5, 20)],
    )
    errors, weights = table(text, "Distance from exact attention"), table(text, "Weights")
    assert list(errors) == list(weights) == ["strided", "linear"]
    assert errors["linear"] == {
        "Variant": "linear", "Relative error": "0.600", "Null: mean of v": "0.800", "Null: zero": "1.00",
        "Spread over heads": "0.0340", "Cosine similarity": "0.900", "Gradient cosine": "0.912",
        "Error against its reference (worst)": "1.00e-07",
    }  # fmt: skip
    assert weights["linear"] == {
        "Variant": "linear", "Total variation": "0.250", "Missed mass": "0.125", "Effective keys": "60.0",
        "Exact mass on 4 first keys": "0.456", "Own mass on 4 first keys": "0.123",
    }  # fmt: skip
    assert (
        "Total variation and missed mass are measured on 2,048 query rows in drawn blocks; all other columns on all "
        "rows." in text
    )


def test_variants_are_grouped_by_budget(tmp_path: Path) -> None:
    fitted = {"linear": (0.3, None), "strided:stride=9": (0.5, "N/16"), "sliding_window:window=9": (0.4, "N/16"),
              "sliding_window:window=99": (0.2, "N/4")}  # fmt: skip
    text = report(
        tmp_path, [fidelity_record(v, error, n, budget=b) for v, (error, b) in fitted.items() for n in (5, 20)]
    )
    errors = table(text, "Distance from exact attention")
    assert list(errors) == ["linear", "sliding_window:window=9", "strided:stride=9", "sliding_window:window=99"]
    assert [line["Budget"] for line in errors.values()] == [units.EMPTY, "N/16", "N/16", "N/4"]
    assert table(text, "Weights")["sliding_window:window=99"]["Budget"] == "N/4"


def test_only_variants_with_sampled_rows_are_named(tmp_path: Path) -> None:
    rows = [
        fidelity_record("linear", 0.6, 5, weight_rows=2048),
        fidelity_record("nystromformer", 0.5, 5, weight_rows=8192),
    ]
    assert "2,048 query rows in drawn blocks (linear); all" in report(tmp_path, rows)
    all_rows = [fidelity_record("linear", 0.6, 5, 1024, weight_rows=1024, **NEWER_COLUMNS)]
    assert "drawn blocks" not in report(tmp_path / "short", all_rows)


def test_missing_columns_of_older_runs_are_omitted(tmp_path: Path) -> None:
    text = report(tmp_path, [fidelity_record("linear", 0.6, 5), fidelity_record("strided", 0.4, 5)])
    assert "Gradient cosine" not in table(text, "Distance from exact attention")["linear"]
    assert table(text, "Weights")["linear"].keys() == {"Variant", "Total variation", "Missed mass", "Effective keys"}
