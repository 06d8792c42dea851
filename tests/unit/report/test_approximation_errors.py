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
    row = runs.row(variant, task="fidelity", relative_error=error, **{"inputs": "minilm", "seq_len": 256, **columns})
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
    assert rows.loc["linear", "error_on"] == "MiniLM, N = 256, bidirectional, mean over 2 layers"
    assert rows.loc["linear", "error_how"] == "float32, where the mean of v has 0.500"
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


def test_errors_hold_for_any_number_of_key_value_heads(tmp_path: Path) -> None:
    """The heads are those of the model whose activations they are measured on, which the conditions name."""
    rows = read_rows(tmp_path, [timed_record("linear", kv_heads=1), fidelity_record("linear", 0.2)])
    assert rows["error"].tolist() == [0.2]
    rows = read_rows(tmp_path / "shared", [timed_record("linear"), fidelity_record("linear", 0.3, kv_heads=2)])
    assert rows["error"].tolist() == [0.3]


def test_nearly_equal_numeric_options_count_and_are_named(tmp_path: Path) -> None:
    specs = ["sliding_window:window=128", "sliding_window:window=512", "performer:kind=positive:n_features=256"]
    near = ["sliding_window:window=127", "sliding_window:window=500", "performer:kind=trigonometric:n_features=256"]
    records = [fidelity_record(name, error) for name, error in zip(near, (0.2, 0.3, 0.4), strict=True)]
    rows = read_rows(tmp_path, [*map(timed_record, specs), *records])
    assert rows["error"].fillna(-1).tolist() == [0.2, -1, -1]  # 0.8%, 2.3%, and another kind
    conditions = approximation_errors.describe_conditions(rows.loc[specs[0]].to_dict() | {"variant": specs[0]})
    assert conditions == "MiniLM, N = 256, bidirectional, measured with sliding_window:window=127"


def test_errors_of_one_table_come_from_one_model_and_length(tmp_path: Path) -> None:
    """The causal capture at 2,048 has two of the three mechanisms, that at 384 has only one, whatever its length."""
    records = [
        fidelity_record("linear", 1.1, causal=True, inputs="smollm2@1", seq_len=2048),
        fidelity_record("cosformer", 1.2, causal=True, inputs="smollm2@1", seq_len=2048),
        fidelity_record("retention", 0.3, causal=True, inputs="smollm2@2", seq_len=8192),
        fidelity_record("linear", 0.4, causal=False),
    ]
    timed = [timed_record(name, causal=True) for name in ("linear", "cosformer", "retention")]
    rows = read_rows(tmp_path, [*timed, *records])
    assert rows["error"].fillna(-1).tolist() == [1.1, 1.2, -1]
    assert set(rows["error_on"].dropna()) == {"SmolLM2-135M, N = 2,048, causal"}


def test_layers_that_differ_are_not_mixed(tmp_path: Path) -> None:
    records = [
        *(fidelity_record("linear", 0.2, layer=layer) for layer in (0, 2)),
        *(fidelity_record("cosformer", 0.5, layer=layer) for layer in (0, 2)),
        fidelity_record("retention", 0.1, layer=0),
    ]
    rows = read_rows(tmp_path, [*map(timed_record, ("linear", "cosformer", "retention")), *records])
    assert rows["error"].fillna(-1).tolist() == [0.2, 0.5, -1]


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
        (0.08, 0.76, "relative error 0.0800"),
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
    assert f"({config}; relative errors: MiniLM, N = 256, bidirectional, mean over 3 layers)" in sentence
    (table, *_) = [t for section in content.folded for block in section.blocks for t in block.tables]
    cells = {row[0].text: row[table.head.index("Error")].text for row in table.rows}
    assert cells["linear"] == "0.837"
    assert cells["performer:kind=positive:n_features=256"] == "not measured"
    assert table.note.startswith(
        "Relative errors: MiniLM, N = 256, bidirectional, mean over 3 layers, float32, where the mean of v has "
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
    assert list(approximation_errors.add_errors(select.add_labels(gathered.rows[:0])).columns)[-7:] == list(
        approximation_errors.ERROR_COLUMNS
    )
