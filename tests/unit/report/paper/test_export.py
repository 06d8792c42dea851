"""The five figures from rows: picture, table and caption agree, and the caption names the configuration."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import get_args

import pytest
import report_runs as runs
from PIL import Image

from efficient_attn.cli import plot
from efficient_attn.errors import UsageError
from efficient_attn.report.paper import export
from efficient_attn.report.paper.export import FigureRequest, make_figure


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [*runs.speed(), *runs.speed("forward_backward"), *runs.decode(), *runs.fidelity()]
    return runs.write_run(tmp_path_factory.mktemp("plot") / "run", records)


def table(run: Path, **asked: object) -> list[list[str]]:
    """The cells of a figure's table, its head first."""
    text = make_figure([run], FigureRequest(file_format="tex", **asked)).data.decode()  # type: ignore[arg-type]
    return [line.strip().removesuffix(r" \\").split(" & ") for line in text.splitlines() if line.endswith(r"\\")]


def test_the_command_line_lists_all_figures() -> None:
    assert get_args(export.FigureName) == plot.FIGURES
    assert get_args(export.FileFormat) == plot.FORMATS


def test_the_speed_figure_states_approximation_errors(run: Path) -> None:
    head, first, *rest = table(run, figure="speed")
    assert head == ["Mechanism", "At 1K", "At 8K", "Error"]
    assert first[0] == "linear", "the fastest at the longest"
    assert re.fullmatch(r"\d+\.\dx \{\\scriptsize \(\d+\.\d--\d+\.\d\)\}", first[2])
    assert re.fullmatch(r"0\.837 \{\\scriptsize \(0\.620--1\.38\)\}", first[3])
    assert [line[0] for line in rest][-1].startswith("performer")
    assert [line[3] for line in rest][-1] == "not measured"
    made = make_figure([run], FigureRequest(figure="speed"))
    assert "Error against exact attention (MiniLM, N = 256, bidirectional, mean over 3 layers): linear" in made.caption
    assert "Error not measured: performer:kind=positive:n_features=256." in made.caption
    assert made.caption.endswith(f"Measured: {made.config_text}.")
    assert made.alternatives == ("--mode forward_backward", "--heads 8 --mode decode --causal")


def test_other_configurations_can_be_selected(run: Path) -> None:
    made = make_figure([run], FigureRequest(figure="speed", filters={"mode": "decode"}))
    assert made.config_text.startswith("decode, cpu")
    assert made.labels == ("mqa", "gqa:kv_heads=2")
    assert table(run, figure="speed", filters={"mode": "decode"})[0][1:] == [
        "After 1K",
        "After 4K",
        "After 16K",
        "Error",
    ]


def test_memory_shows_the_baseline_and_for_decoding_the_state(run: Path) -> None:
    lines = table(run, figure="memory")
    assert lines[0] == ["Mechanism", "1K", "8K", "Error"]
    assert lines[1][0] == "full"
    assert lines[1][-1] == "exact"
    made = make_figure([run], FigureRequest(figure="memory", filters={"mode": "decode"}))
    assert made.caption.startswith("State: decode.")


def test_a_front_names_the_dominated_mechanisms(run: Path) -> None:
    lines = {line[0]: line for line in table(run, figure="front", against="memory")}
    assert lines["Mechanism"][1:] == ["Memory over full\\textquotesingle{}s", "Error", "Pareto front"]
    assert lines["full"][2:] == ["exact", "on the front"]
    assert lines["linear"][3] == "dominated by full"


def test_crossovers_are_reported_with_intervals(run: Path) -> None:
    lines = {line[0]: line for line in table(run, figure="crossover")}
    assert lines["linear"][1] == "\\textless{}=512"
    late = lines["performer:kind=positive:n\\_features=256"]
    assert late[3].endswith("at 8K {\\scriptsize (" + late[3].partition("(")[2])


def test_mechanisms_that_are_never_faster_are_drawn_at_the_longest_length(tmp_path: Path) -> None:
    records = list(runs.speed())
    for record in records:
        if record.row.variant == "linear":
            record.row.speedup, record.row.speedup_low, record.row.speedup_high = 0.5, 0.4, 0.6
        if record.row.variant == "sliding_window:window=128":
            seq_len = record.row.seq_len or 0
            record.row.speedup = 2.0 if seq_len > 1024 else 0.5
            record.row.speedup_low, record.row.speedup_high = record.row.speedup * 0.9, record.row.speedup * 1.1
    run = runs.write_run(tmp_path / "run", records)
    lines = {line[0]: line for line in table(run, figure="crossover")}
    assert lines["linear"][1:3] == ["none up to 8K", "--"]
    window = lines["sliding\\_window:window=128"]
    assert window[1] == "1K--2K"
    assert window[2].startswith("1448 "), "half way in logarithms"


def test_errors_are_compared_with_a_null_predictor(run: Path) -> None:
    lines = table(run, figure="loss")
    assert [line[0] for line in lines][1:] == [
        "sliding\\_window:window=128", "sliding\\_window:window=32", "linear", "mean of v (null)",
    ]  # fmt: skip
    assert "full" in make_figure([run], FigureRequest(figure="loss")).caption, "exact, so not drawn, and said"


@pytest.mark.parametrize("figure", get_args(export.FigureName))
def test_pictures_have_the_requested_width(run: Path, figure: export.FigureName) -> None:
    made = make_figure([run], FigureRequest(figure=figure, file_format="png", width=2.5))
    assert Image.open(io.BytesIO(made.data)).width == 750
    assert made.data == make_figure([run], FigureRequest(figure=figure, file_format="png", width=2.5)).data, (
        "the same from the same rows"
    )


def test_requested_names_are_used_everywhere(run: Path) -> None:
    asked = {"only": ("linear", "sliding_window"), "labels": ("linear=Ours",), "highlight": ("linear",)}
    made = make_figure([run], FigureRequest(figure="speed", file_format="svg", **asked))  # type: ignore[arg-type]
    drawn = made.data.decode()
    assert "Ours" in drawn
    assert ">linear" not in drawn
    assert "performer" not in drawn
    assert "Ours 0." in made.caption
    assert made.left_out == ("performer:kind=positive:n_features=256",)
    assert table(run, figure="speed", **asked)[1][0] == r"\textbf{Ours}"


def test_labels_with_a_common_prefix_are_not_confused() -> None:
    names = {"linear": "Ours", "relu_linear": "relu_linear", "linear:eps=1": "B"}
    assert (
        export._replace_labels("linear, relu_linear and linear:eps=1 (linear)", names)
        == "Ours, relu_linear and B (Ours)"
    )


def test_invalid_requests_are_errors() -> None:
    with pytest.raises(UsageError, match=r"--width 40in: the width must be 1.5 to 20 inches"):
        FigureRequest(figure="speed", width=40)
    with pytest.raises(UsageError, match="--against applies to --figure front only"):
        FigureRequest(figure="speed", against="state")
