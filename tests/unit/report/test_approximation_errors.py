"""What a speed costs in error: of the same spec, wherever it was measured, in a table and in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report import approximation_errors, gather, page, select
from efficient_attn.results.rows import Record


def read(folder: Path, records: Iterable[Record]) -> Any:
    """The rows of a run with their losses, by variant."""
    found = gather.gather([runs.write_run(folder / "run", records)])
    rows = approximation_errors.add_errors(select.add_labels(found.rows))
    return rows[rows["mode"].notna()].drop_duplicates("variant").set_index("variant")


def faithful(variant: str, error: float, **known: Any) -> Record:
    made = runs.row(variant, task="fidelity", inputs="minilm", relative_error=error, **{"seq_len": 256, **known})
    made.case_key = f"fidelity/{variant}/{sorted(known.items())}"
    return Record(made, {"mean_value_error": 0.5})


def timed(variant: str, **known: Any) -> Record:
    return Record(runs.row(variant, mode="forward", seq_len=512, latency_ms=1.0, **known))


def test_errors_are_means_over_the_layers_of_the_same_spec(tmp_path: Path) -> None:
    found = read(
        tmp_path, [timed("linear"), timed("mqa"), faithful("linear", 0.2, layer=0), faithful("linear", 0.4, layer=1)]
    )
    assert found.loc["linear", "error"] == pytest.approx(0.3)
    assert found.loc["linear", "error_of_mean"] == 0.5
    assert found.loc["linear", "error_on"] == "minilm, bidirectional, N = 256"
    assert found.loc["linear", "error_how"] == "float32, mean over 2 layers, where the mean of v has 0.500"
    assert found["error"].isna().tolist() == [False, True]


def test_a_backend_changes_no_error_and_options_do(tmp_path: Path) -> None:
    specs = ["linear:backend=cpp", "sliding_window:window=64", "gqa:b=2:a=1"]
    measured = [faithful("linear", 0.2), faithful("sliding_window:window=128", 0.1), faithful("gqa:a=1:b=2", 0.4)]
    found = read(tmp_path, [*map(timed, specs), *measured])
    assert found["error"].fillna(-1).tolist() == [0.2, -1, 0.4]


def test_heads_that_share_keys_are_another_mechanism(tmp_path: Path) -> None:
    found = read(tmp_path, [timed("linear", kv_heads=1), faithful("linear", 0.2)])
    assert found["error"].isna().all()
    found = read(tmp_path / "shared", [timed("linear", kv_heads=1), faithful("linear", 0.2, kv_heads=2)])
    assert found["error"].tolist() == [0.2]


def test_the_row_s_own_dtype_and_direction_come_first(tmp_path: Path) -> None:
    known = [
        faithful("linear", 0.1, causal=True, dtype="bfloat16"),
        faithful("linear", 0.2, causal=False, dtype="float32"),
        faithful("linear", 0.3, causal=True, dtype="float32"),
        faithful("linear", 0.4, causal=True, dtype="float32", seq_len=128),
    ]
    assert read(tmp_path, [timed("linear", causal=True), *known])["error"].tolist() == [0.3]
    found = read(tmp_path / "other", [timed("linear", causal=True), known[1]])
    assert found["error"].tolist() == [0.2]
    assert "bidirectional" in found["error_on"].iloc[0]


@pytest.mark.parametrize(
    ("error", "null", "said"),
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
def test_losses_in_words(error: float | None, null: float | None, said: str) -> None:
    assert approximation_errors.describe_error({"variant": "linear", "error": error, "error_of_mean": null}) == said


def test_exact_attention_needs_no_measurement() -> None:
    assert (
        approximation_errors.describe_error({"variant": "full:backend=dense", "error": None, "error_of_mean": None})
        == "exact"
    )
    assert (
        approximation_errors.describe_error({"variant": "no: spec at=all", "error": None, "error_of_mean": None})
        == "error not measured"
    )


def test_a_headline_says_what_its_speed_costs_and_where_it_holds(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", [*runs.speed(lengths=(512, 8192)), *runs.fidelity()])
    shown = page.make_content(gather.gather([run]))
    (said,) = shown.findings
    assert "faster than full, as far from exact attention as the mean of v; sliding_window" in said
    assert "; 1 more differ" in said
    held = "cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine Xeon-x2-15GiB (Intel(R) Xeon(R) @ 2.10GHz)"
    assert f"({held}; errors on minilm, bidirectional, N = 256)" in said
    (table, *_) = [t for section in shown.folded for block in section.blocks for t in block.tables]
    cells = {row[0].text: row[table.head.index("Error")].text for row in table.rows}
    assert cells["linear"] == "0.837"
    assert cells["performer:kind=positive:n_features=256"] == "not measured"
    assert table.note.startswith(
        "Errors were measured on minilm, bidirectional, N = 256, float32, mean over 3 layers, "
    )


def test_without_fidelity_errors_are_not_measured(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", [*runs.speed(lengths=(512, 8192)), *runs.decode()])
    text = page.as_markdown(page.make_content(gather.gather([run])))
    headlines = [line for line in text.splitlines() if line.startswith("- At ")]
    assert len(headlines) == 3, "two findings, and one of them whole"
    assert all(line.count("error not measured") == 1 for line in headlines)
    assert text.count("Errors against exact attention were not measured.") == 2
    assert "| Error |" not in text


def test_rows_of_no_time_get_no_losses(tmp_path: Path) -> None:
    one = next(iter(runs.fidelity()))
    found = gather.gather([runs.write_run(tmp_path / "run", [replace(one)])])
    assert approximation_errors.add_errors(select.add_labels(found.rows))["error"].isna().all()
    assert list(approximation_errors.add_errors(select.add_labels(found.rows[:0])).columns)[-8:] == list(
        approximation_errors.ERROR_COLUMNS
    )
