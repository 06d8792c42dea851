"""Which configuration and mechanisms a figure shows, and their names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.errors import UsageError
from efficient_attn.report import approximation_errors, gather, select
from efficient_attn.report.paper import selection
from efficient_attn.report.paper.export import FigureRequest, make_figure
from efficient_attn.results.rows import Record

LABELS = ["full", "linear", "gqa:kv_heads=2", "gqa:kv_heads=4", "sliding_window:window=128", "mqa (kv_heads=1)"]


@pytest.fixture
def rows(tmp_path: Path) -> gather.Frame:
    run = runs.write_run(tmp_path / "run", [*runs.speed(), *runs.speed(causal=True), *runs.decode(), *runs.fidelity()])
    return approximation_errors.add_errors(select.add_labels(gather.gather([run]).rows))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("linear", ["linear"]),
        ("gqa", ["gqa:kv_heads=2", "gqa:kv_heads=4"]),
        ("gqa:kv_heads=4", ["gqa:kv_heads=4"]),
        ("mqa", ["mqa (kv_heads=1)"]),
        ("mqa (kv_heads=1)", ["mqa (kv_heads=1)"]),
    ],
)
def test_labels_are_found_by_spec_or_by_name(text: str, found: list[str]) -> None:
    assert selection.find_labels(text, LABELS) == found


@pytest.mark.parametrize("text", ["liner", "sliding_window:window=64", "", "::", "a|"])
def test_unknown_mechanisms_are_reported(text: str) -> None:
    with pytest.raises(UsageError, match="plot: unknown mechanism"):
        selection.find_labels(text, LABELS)


def test_without_only_the_first_are_shown_and_the_highlighted() -> None:
    selected, left = selection.choose_labels(LABELS, max_lines=3, highlight=("mqa",))
    assert selected == ["full", "linear", "mqa (kv_heads=1)"]
    assert left == ["gqa:kv_heads=2", "gqa:kv_heads=4", "sliding_window:window=128"]
    selected, left = selection.choose_labels(LABELS, max_lines=3, only=("gqa", "linear"))
    assert selected == ["linear", "gqa:kv_heads=2", "gqa:kv_heads=4"], "in their rank"
    with pytest.raises(UsageError, match="one figure shows at most 2"):
        selection.choose_labels(LABELS, max_lines=2, only=("gqa", "linear"))
    with pytest.raises(UsageError, match="unknown mechanism"):
        selection.choose_labels(LABELS, max_lines=3, only=("gqa",), highlight=("linear",))


def test_baseline_in_only_is_ignored() -> None:
    selected, left = selection.choose_labels(
        LABELS[1:], max_lines=1, only=("full", "linear"), highlight=("full",), baseline_labels={"full"}
    )
    assert selected == ["linear"]
    assert len(left) == 4
    with pytest.raises(UsageError, match="--only names only mechanisms that are always shown: full"):
        selection.choose_labels(LABELS[1:], max_lines=3, only=("full",), baseline_labels={"full"})


def test_specs_in_label_options_may_contain_equals_signs() -> None:
    names = selection.read_labels(["sliding_window:window=128=Ours (w=128)", "linear = Linear"], LABELS)
    assert names["sliding_window:window=128"] == "Ours (w=128)"
    assert names["linear"] == "Linear"
    assert names["full"] == "full"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("gqa=Ours", "name one of them"),
        ("liner=Ours", "not SPEC=NAME of a mechanism in the figure"),
        ("linear", "not SPEC=NAME"),
        ("linear=", "not SPEC=NAME"),
        ("linear=full", "two mechanisms have the name 'full'"),
    ],
)
def test_invalid_label_options_are_errors(given: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        selection.read_labels([given], LABELS)


def count_decisions(plot_rows: selection.PlotRows) -> int:
    return len(plot_rows.decisions)


def test_forward_is_preferred_then_most_mechanisms(rows: gather.Frame) -> None:
    places = selection.list_timed_rows(rows, {})
    (first,), others, missing = selection.choose_plot_rows(places, count_decisions, "speed", {})
    assert (first.config["mode"], first.config["causal"]) == ("forward", False)
    assert [(one.config["mode"], one.config["causal"]) for one in others] == [
        ("forward", True),
        ("decode", True),
    ]
    assert not missing
    assert first.format_config().startswith(
        "forward, bidirectional, cpu, float32, 1 thread, batch 1, 4 heads of size 64, machine "
    )
    (judged,) = selection.list_compared_rows(rows, {})
    assert judged.format_config().startswith("MiniLM, N = 256, bidirectional, cpu")
    with pytest.raises(UsageError, match="no data for --figure memory: peak memory was not measured"):
        selection.choose_plot_rows(places, lambda plot_rows: 0, "memory", {})


def test_each_combination_of_values_is_a_configuration_and_missing_ones_are_reported(rows: gather.Frame) -> None:
    places = selection.list_timed_rows(rows, {})
    filters = {"mode": ("decode", "forward"), "causal": (True, False), "heads": (4,)}
    chosen, others, missing = selection.choose_plot_rows(places, count_decisions, "speed", filters)
    assert [(x.config["mode"], x.config["causal"]) for x in chosen] == [
        ("decode", True),
        ("forward", True),
        ("forward", False),
    ]
    assert not others
    assert missing == ["mode decode, causal False"]
    common, titles = selection.describe_configurations(chosen)
    assert common == "cpu, float32, 1 thread, batch 1, Xeon (2 cores)"
    assert titles == [
        ["decode", "8 heads of size 64"],
        ["forward, causal", "4 heads of size 64"],
        ["forward, bidirectional", "4 heads of size 64"],
    ]


def test_a_further_configuration_agrees_with_the_first_in_most_columns(tmp_path: Path) -> None:
    records = [
        *runs.speed(),
        *runs.speed(batch=4, heads=8, dtype="bfloat16"),
        *runs.speed(heads=8, causal=True, batch=2),
    ]
    records += [*runs.speed(heads=8, threads=2)]
    run = runs.write_run(tmp_path / "run", records)
    labeled = approximation_errors.add_errors(select.add_labels(gather.gather([run]).rows))
    places = selection.list_timed_rows(labeled, {})
    chosen, others, _ = selection.choose_plot_rows(places, count_decisions, "speed", {"heads": (4, 8)})
    assert [(x.config["heads"], x.config["threads"], x.config["batch"]) for x in chosen] == [(4, 1, 1), (8, 2, 1)]
    assert len(others) == 2


def test_more_than_four_configurations_are_an_error(tmp_path: Path) -> None:
    records = [record for heads in (1, 2, 3, 4, 5) for record in runs.speed(heads=heads)]
    run = runs.write_run(tmp_path / "run", records)
    labeled = approximation_errors.add_errors(select.add_labels(gather.gather([run]).rows))
    places = selection.list_timed_rows(labeled, {})
    with pytest.raises(UsageError, match="5 configurations; a figure shows at most 4: give fewer values of --heads"):
        selection.choose_plot_rows(places, count_decisions, "speed", {"heads": (1, 2, 3, 4, 5)})


def test_machines_with_the_same_short_name_keep_their_full_names(tmp_path: Path) -> None:
    names = ("AMD-Zen4-2c-24GiB#5d0574", "AMD-Zen4-2c-48GiB#abcdef")
    run = runs.write_run(tmp_path / "run", [record for name in names for record in runs.speed(machine=name)])
    labeled = approximation_errors.add_errors(select.add_labels(gather.gather([run]).rows))
    filters = {"machine": ("24GiB", "48GiB")}
    places = selection.list_timed_rows(labeled, {})
    chosen, _, _ = selection.choose_plot_rows(places, count_decisions, "speed", filters)
    assert selection.describe_configurations(chosen)[1] == [[name] for name in names]


def test_rows_are_filtered_by_values(rows: gather.Frame) -> None:
    selected = selection.filter_rows(rows, {"mode": ("forward",), "causal": (True,), "machine": ("Xeon (2",)})
    assert set(selected["causal"]) == {True}
    assert set(selected["mode"]) == {"forward"}
    assert set(selection.filter_rows(rows, {"mode": ("forward", "decode")})["mode"]) == {"forward", "decode"}
    with pytest.raises(UsageError, match="no row has dtype bfloat16; the rows have float32"):
        selection.filter_rows(rows, {"dtype": ("float32", "bfloat16")})
    with pytest.raises(UsageError, match="no row has seq-len 7; the rows have 256, 512, 1024, 2048"):
        selection.filter_rows(rows, {"seq_len": (7,)})
    with pytest.raises(UsageError, match="no row has mode train"):
        selection.filter_rows(rows, {"mode": ("train",)})


@pytest.mark.parametrize("figure", ["speed", "memory", "front"])
def test_tables_list_all_mechanisms(tmp_path: Path, figure: Any) -> None:
    variants = [f"sliding_window:window={2**i}" for i in range(15)]
    records = [*runs.speed(lengths=(512,)), *runs.fidelity()]
    windows = [x for x in records if x.row.variant == "sliding_window:window=128"]
    records += [Record(replace(x.row, variant=v, case_key=f"{v}/{x.row.case_key}")) for v in variants for x in windows]
    run = runs.write_run(tmp_path / "run", records)
    made = make_figure([run], FigureRequest(figure=figure, file_format="tex"))
    rows = "".join(page.decode() for page in made.pages)
    assert {*variants} <= {*made.labels}
    assert all(rf"window={2**i}}}" in rows for i in range(15))
    assert made.left_out == ()
    picture = make_figure([run], FigureRequest(figure=figure, file_format="svg"))
    assert picture.notes[-1] == f"Not shown: {', '.join(picture.left_out)}."
