"""Approximation errors of timed rows: matched by spec, in tables and in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report import approximation_errors, gather, page, select
from efficient_attn.results.rows import Record


def read_rows(folder: Path, records: Iterable[Record]) -> Any:
    """The timed rows of a run with their approximation errors, by variant."""
    gathered = gather.gather([runs.write_run(folder / "run", records)])
    rows = approximation_errors.add_errors(select.add_labels(gathered.rows))
    return rows[rows["mode"].notna()].drop_duplicates("variant").set_index("variant")


def fidelity_record(variant: str, error: float, **columns: Any) -> Record:
    row = runs.row(variant, task="fidelity", inputs="minilm", relative_error=error, **{"seq_len": 256, **columns})
    row.case_key = f"fidelity/{variant}/{sorted(columns.items())}"
    return Record(row, {"mean_value_error": 0.5})


def timed_record(variant: str, **columns: Any) -> Record:
    return Record(runs.row(variant, mode="forward", seq_len=512, latency_ms=1.0, **columns))


def test_errors_are_means_over_the_layers_of_the_same_spec(tmp_path: Path) -> None:
    rows = read_rows(
        tmp_path,
        [
            timed_record("linear"),
            timed_record("mqa"),
            fidelity_record("linear", 0.2, layer=0),
            fidelity_record("linear", 0.4, layer=1),
        ],
    )
    assert rows.loc["linear", "error"] == pytest.approx(0.3)
    assert rows.loc["linear", "error_of_mean"] == 0.5
    assert rows.loc["linear", "error_on"] == "minilm, bidirectional, N = 256"
    assert rows.loc["linear", "error_how"] == "float32, mean over 2 layers, where the mean of v has 0.500"
    assert rows["error"].isna().tolist() == [False, True]


def test_errors_match_specs_by_options_but_not_backend(tmp_path: Path) -> None:
    specs = ["linear:backend=cpp", "sliding_window:window=64", "gqa:b=2:a=1"]
    measured = [
        fidelity_record("linear", 0.2),
        fidelity_record("sliding_window:window=128", 0.1),
        fidelity_record("gqa:a=1:b=2", 0.4),
    ]
    rows = read_rows(tmp_path, [*map(timed_record, specs), *measured])
    assert rows["error"].fillna(-1).tolist() == [0.2, -1, 0.4]


def test_grouped_and_ungrouped_heads_do_not_share_errors(tmp_path: Path) -> None:
    rows = read_rows(tmp_path, [timed_record("linear", kv_heads=1), fidelity_record("linear", 0.2)])
    assert rows["error"].isna().all()
    rows = read_rows(
        tmp_path / "shared", [timed_record("linear", kv_heads=1), fidelity_record("linear", 0.2, kv_heads=2)]
    )
    assert rows["error"].tolist() == [0.2]


def test_errors_of_the_same_dtype_and_direction_are_preferred(tmp_path: Path) -> None:
    records = [
        fidelity_record("linear", 0.1, causal=True, dtype="bfloat16"),
        fidelity_record("linear", 0.2, causal=False, dtype="float32"),
        fidelity_record("linear", 0.3, causal=True, dtype="float32"),
        fidelity_record("linear", 0.4, causal=True, dtype="float32", seq_len=128),
    ]
    assert read_rows(tmp_path, [timed_record("linear", causal=True), *records])["error"].tolist() == [0.3]
    rows = read_rows(tmp_path / "other", [timed_record("linear", causal=True), records[1]])
    assert rows["error"].tolist() == [0.2]
    assert "bidirectional" in rows["error_on"].iloc[0]


@pytest.mark.parametrize(
    ("error", "null", "text"),
    [
        (0.08, 0.76, "error 0.0800"),
        (0.70, 0.76, "as far from exact attention as the mean of v"),
        (0.80, 0.76, "as far from exact attention as the mean of v"),
        (0.95, 0.76, "farther from exact attention than the mean of v"),
        (0.95, None, "as far from exact attention as zeros"),
        (1.3, float("nan"), "farther from exact attention than zeros"),
        (2e-7, 0.76, "exact up to rounding"),
        (None, None, "error not measured"),
        (float("nan"), 0.76, "error not measured"),
    ],
)
def test_errors_are_described_relative_to_the_null(error: float | None, null: float | None, text: str) -> None:
    assert approximation_errors.describe_error({"variant": "linear", "error": error, "error_of_mean": null}) == text


def test_exact_attention_is_exact_without_measurement() -> None:
    assert (
        approximation_errors.describe_error({"variant": "full:backend=dense", "error": None, "error_of_mean": None})
        == "exact"
    )
    assert (
        approximation_errors.describe_error({"variant": "no: spec at=all", "error": None, "error_of_mean": None})
        == "error not measured"
    )


def test_findings_state_errors_and_configuration(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", [*runs.speed(lengths=(512, 8192)), *runs.fidelity()])
    content = page.make_content(gather.gather([run]))
    (sentence,) = content.findings
    assert "faster than full, as far from exact attention as the mean of v; sliding_window" in sentence
    assert "; 1 more differ" in sentence
    config = "cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine Xeon-x2-15GiB (Intel(R) Xeon(R) @ 2.10GHz)"
    assert f"({config}; errors on minilm, bidirectional, N = 256)" in sentence
    (table, *_) = [t for section in content.folded for block in section.blocks for t in block.tables]
    cells = {row[0].text: row[table.head.index("Error")].text for row in table.rows}
    assert cells["linear"] == "0.837"
    assert cells["performer:kind=positive:n_features=256"] == "not measured"
    assert table.note.startswith(
        "Errors were measured on minilm, bidirectional, N = 256, float32, mean over 3 layers, "
    )


def test_errors_are_not_measured_without_fidelity_rows(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", [*runs.speed(lengths=(512, 8192)), *runs.decode()])
    text = page.as_markdown(page.make_content(gather.gather([run])))
    headlines = [line for line in text.splitlines() if line.startswith("- At ")]
    assert len(headlines) == 3, "two findings, and one of them again in full"
    assert all(line.count("error not measured") == 1 for line in headlines)
    assert text.count("Errors against exact attention were not measured.") == 2
    assert "| Error |" not in text


def test_untimed_rows_get_no_errors(tmp_path: Path) -> None:
    record = next(iter(runs.fidelity()))
    gathered = gather.gather([runs.write_run(tmp_path / "run", [replace(record)])])
    assert approximation_errors.add_errors(select.add_labels(gathered.rows))["error"].isna().all()
    assert list(approximation_errors.add_errors(select.add_labels(gathered.rows[:0])).columns)[-8:] == list(
        approximation_errors.ERROR_COLUMNS
    )
