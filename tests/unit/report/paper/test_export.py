"""The six figures from rows: picture, table and caption agree, and the caption names the configuration."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import report_runs as runs
from learned_runs import seeds, swapped, unable
from PIL import Image

from efficient_attn.cli import plot
from efficient_attn.errors import UsageError
from efficient_attn.report.paper import export
from efficient_attn.report.paper.export import FigureRequest, make_figure
from efficient_attn.results.rows import Record

RESULTS = Path(__file__).parents[4] / "results"
HOSTILE = "a%b_c&d#e{f}\\g^h~i$j<k>\"l'm`n[o]-\u4e2d"


def trained(task: str = "mqar") -> Iterator[Record]:
    """Rows of models trained with three seeds; the last mechanism is at chance."""
    yield from seeds("full", (1.0, 0.99, 0.98), task=task, train_majority=None)
    yield from seeds("linear", (0.9, 0.89, 0.88), task=task, train_majority=None)
    yield from unable("cosformer", task=task, train_majority=None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [*runs.speed(), *runs.speed("forward_backward"), *runs.decode(), *runs.fidelity(), *trained(), *swapped()]
    return runs.write_run(tmp_path_factory.mktemp("plot") / "run", records)


def table(run: Path, **asked: object) -> list[list[str]]:
    """The cells of a figure's table, its head first; intervals have cells of their own."""
    made = make_figure([run], FigureRequest(**({"file_format": "tex", "width": 6.8} | asked)))  # type: ignore[arg-type]
    lines = [line for page in made.pages for line in page.decode().splitlines()]
    return [line.strip().removesuffix(r" \\").split(" & ") for line in lines if line.endswith(r"\\")]


def test_the_command_line_lists_all_figures() -> None:
    assert get_args(export.FigureName) == plot.FIGURES
    assert get_args(export.FileFormat) == plot.FORMATS


def test_the_speed_figure_states_approximation_errors(run: Path) -> None:
    head, first, *rest = table(run, figure="speed", filters={"seq_len": (1024, 8192)})
    assert head == ["Mechanism", *(rf"\multicolumn{{2}}{{c}}{{{name}}}" for name in ("1K", "8K", "Error"))]
    assert first[0] == "linear", "the fastest at the longest"
    assert re.fullmatch(r"\d+\.\d\$\\times\$", first[3])
    assert re.fullmatch(r"\{\\scriptsize \(\d+\.\d--\d+\.\d\)\}", first[4])
    assert first[5:] == ["0.837", r"{\scriptsize (0.620--1.38)}"]
    assert [line[0] for line in rest][-1].startswith("performer")
    assert [line[5:] for line in rest][-1] == ["--", ""]
    assert table(run, figure="speed")[0] == ["Mechanism", "512", "1K", "2K", "4K", "8K", "Error"]
    made = make_figure([run], FigureRequest(figure="speed"))
    assert made.caption == (
        "Speedup over full by length, with 95% intervals. Measured: forward, bidirectional, cpu, float32, 1 thread, "
        "batch 1, 4 heads of size 64, Xeon (2 cores)."
    )
    assert any("linear 0.837" in note for note in made.notes)
    assert (
        made.notes[-1]
        == "Error: relative error against exact attention (MiniLM, N = 256, bidirectional, mean over 3 layers)."
    )
    assert made.alternatives == ("--mode forward_backward", "--heads 8 --mode decode --causal")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("figure", plot.FIGURES)
@pytest.mark.parametrize("file_format", ["tex", "svg"])
def test_captions_have_at_most_two_sentences(run: Path, figure: Any, file_format: Any) -> None:
    made = make_figure([run], FigureRequest(figure=figure, file_format=file_format))
    assert len(re.findall(r"\.(?: |$)", made.caption)) == 2
    assert len(made.caption.split()) <= 45
    if file_format == "tex":
        assert "triangle" not in " ".join([made.caption, *made.notes])


def test_other_configurations_can_be_selected(run: Path) -> None:
    made = make_figure([run], FigureRequest(figure="speed", filters={"mode": ("decode",)}))
    assert made.config_text.startswith("decode, cpu")
    assert made.labels == ("mqa", "gqa:kv_heads=2")
    assert made.alternatives == ()


def test_configurations_are_groups_of_columns_and_panels(run: Path) -> None:
    asked: dict[str, Any] = {
        "figure": "speed",
        "filters": {"mode": ("forward", "forward_backward"), "seq_len": (512, 8192)},
    }
    groups, head, linear, *_ = table(run, **asked)
    assert [re.findall(r"shortstack\{(.*?)\}", cell) for cell in groups[:2]] == [
        ["forward, bidirectional"],
        ["forward + backward, bidirectional"],
    ]
    assert len(head) == 6
    assert len(linear) == 6
    svg = make_figure([run], FigureRequest(file_format="svg", **asked)).pages[0].decode()
    for text in ("forward, bidirectional", "forward + backward"):
        assert text in svg
    assert svg.count(">linear<") == 1, "one key for both panels"


def test_errors_that_differ_are_columns_of_their_configuration(tmp_path: Path) -> None:
    records = [*runs.speed(), *runs.speed(causal=True), *runs.fidelity()]
    records += list(runs.fidelity(length=512, causal=True, layers=(7,)))
    run = runs.write_run(tmp_path / "run", records)
    heads = table(run, figure="speed", filters={"causal": (True, False), "seq_len": (8192,)})[1]
    assert sum("Error" in cell for cell in heads) == 2


def test_memory_shows_the_baseline_growth_and_for_decoding_the_state(run: Path) -> None:
    lines = table(run, figure="memory")
    assert lines[0] == ["Mechanism", "512", "1K", "2K", "4K", "8K", "Growth", "Error"]
    assert lines[1][0] == "full"
    assert lines[1][-3:] == ["5.04 MiB", "$N^{1.00}$", "exact"]
    made = make_figure([run], FigureRequest(figure="memory", filters={"mode": ("decode",)}))
    assert made.caption.startswith("Size of the decoding state by length.")


def test_a_front_names_the_dominated_mechanisms(run: Path) -> None:
    lines = {line[0].partition(" ")[0]: line for line in table(run, figure="front", against="memory")}
    assert lines["Mechanism"][1:] == ["Peak memory", r"\multicolumn{2}{c}{Error}", "Pareto"]
    assert lines["full"][2:] == ["exact", "", "front"]
    assert lines["linear"][-1] == "dominated"


def test_a_front_has_a_panel_for_each_of_several_lengths(run: Path) -> None:
    made = make_figure([run], FigureRequest(figure="front", file_format="tex", filters={"seq_len": (512, 8192)}))
    text = made.pages[0].decode()
    assert r"\shortstack{N = 512}" in text
    assert r"\shortstack{N = 8,192}" in text
    assert " at " not in made.caption


def test_crossovers_are_reported_with_intervals(run: Path) -> None:
    lines = {line[0].partition(" ")[0]: line for line in table(run, figure="crossover")}
    assert lines["Mechanism"][1:3] == ["Faster from", r"\multicolumn{2}{c}{Speedup at 8K}"]
    assert lines["linear"][1] == r"$\le$512"
    assert lines["performer"][3].startswith(r"{\scriptsize (")


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
    lines = {line[0].partition(" ")[0]: line for line in table(run, figure="crossover")}
    assert lines["linear"][1:3] == ["none up to 8K", ""]
    window = lines[r"sliding\_window"]
    assert window[1] == "1448", "half way in logarithms"
    low, high = map(int, re.findall(r"\d+", window[2])[-2:])
    assert 1024 < low < 1448 < high < 2048


def test_errors_are_compared_with_a_null_predictor(run: Path) -> None:
    lines = table(run, figure="error")
    assert [line[0] for line in lines][1:] == [
        "mean of v (null)",
        "full",
        r"sliding\_window {\scriptsize window=128}",
        r"sliding\_window {\scriptsize window=32}",
        "linear",
    ]
    assert lines[2][1] == "exact"


def test_ability_shows_scores_and_what_is_at_chance(run: Path) -> None:
    lines = table(run, figure="ability")
    assert lines[0] == ["Mechanism", r"\multicolumn{2}{c}{Accuracy}"]
    assert lines[1][:2] == ["chance", r"10.0\%"]
    assert lines[2][:2] == ["full", r"99.0\%"]
    assert re.fullmatch(r"\{\\scriptsize \(96\.5--100\)\}", lines[2][2])
    assert lines[4] == ["cosformer", "at chance", ""]
    made = make_figure([run], FigureRequest(figure="ability"))
    assert made.caption.startswith("Test scores of models trained from scratch with each mechanism")
    assert "Vertical line: chance." in made.notes


def test_ability_has_a_panel_for_each_of_four_tests_and_names_the_others(tmp_path: Path) -> None:
    records = [record for task in ("a", "b", "c", "d", "e") for record in trained(task)]
    run = runs.write_run(tmp_path / "run", records)
    made = make_figure([run], FigureRequest(figure="ability", file_format="tex"))
    assert [f"\\shortstack{{{task}}}" in made.pages[0].decode() for task in "abcde"] == [True] * 4 + [False]
    assert made.alternatives == ("--task e",)
    only = make_figure([run], FigureRequest(figure="ability", file_format="tex", filters={"task": ("e", "b")}))
    assert [task for task in "abcde" if f"\\shortstack{{{task}}}" in only.pages[0].decode()] == ["b", "e"]


def test_ability_of_retrieval_has_the_model_in_its_caption() -> None:
    made = make_figure([RESULTS / "retrieval"], FigureRequest(figure="ability", file_format="tex", width=6.8))
    assert made.caption.startswith("Retrieval accuracy of SmolLM2-135M")
    assert r"\shortstack{single\\N = 1,024}" in made.pages[0].decode()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("figure", get_args(export.FigureName))
@pytest.mark.parametrize("width", [2.5, 3.3, 6.8])
def test_pictures_have_the_requested_width_and_a_limited_height(
    run: Path, figure: export.FigureName, width: float
) -> None:
    made = make_figure([run], FigureRequest(figure=figure, file_format="png", width=width))
    for page in made.pages:
        picture = Image.open(io.BytesIO(page))
        assert picture.width == math.floor(300 * width + 0.5)
        assert picture.height <= 1.25 * picture.width
    again = make_figure([run], FigureRequest(figure=figure, file_format="png", width=width))
    assert made.pages == again.pages, "the same from the same rows"


def test_long_figures_have_several_pages_with_all_rows() -> None:
    made = make_figure([RESULTS / "linear_xeon"], FigureRequest(figure="error", file_format="svg"))
    assert len(made.pages) > 1
    drawn = [page.decode() for page in made.pages]
    names = [label.partition(":")[0] for label in made.labels]
    assert sum(page.count(f">{name}<") for page in drawn for name in dict.fromkeys(names)) == len(names)
    for page in drawn:
        width, height = (float(x) for x in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', page)[0])
        assert height <= 1.2 * width


def test_requested_names_are_used_everywhere(run: Path) -> None:
    asked = {"only": ("linear", "sliding_window"), "labels": ("linear=Ours",), "highlight": ("linear",)}
    made = make_figure([run], FigureRequest(figure="speed", file_format="svg", **asked))  # type: ignore[arg-type]
    drawn = made.pages[0].decode()
    assert "Ours" in drawn
    assert ">linear" not in drawn
    assert "performer" not in drawn
    assert any("Ours 0." in note for note in made.notes)
    assert made.left_out == ("performer:kind=positive:n_features=256",)
    assert "Not shown: performer:kind=positive:n_features=256." in made.notes
    lines = table(run, figure="speed", **asked)
    assert lines[1][0] == r"\textbf{Ours}"
    assert all("linear" not in cell for line in lines for cell in line)


@pytest.mark.parametrize("figure", ["speed", "memory", "front", "ability"])
def test_the_baseline_can_be_renamed(run: Path, figure: Any) -> None:
    made = make_figure([run], FigureRequest(figure=figure, file_format="tex", labels=("full=Exact one",)))
    assert "Exact one" in made.pages[0].decode()
    assert "over full" not in made.caption


@pytest.mark.parametrize("figure", ["speed", "front", "crossover", "error"])
def test_hostile_names_are_shown(tmp_path: Path, figure: Any) -> None:
    records = [*runs.speed(), *runs.fidelity()]
    for record in records:
        if record.row.variant == "linear":
            record.row.variant = HOSTILE
    run = runs.write_run(tmp_path / "run", records)
    for file_format in ("tex", "svg", "pdf"):
        made = make_figure([run], FigureRequest(figure=figure, file_format=file_format))  # type: ignore[arg-type]
        assert HOSTILE in made.labels


def test_speedups_without_intervals_have_no_crossover(tmp_path: Path) -> None:
    records = list(runs.speed(machine=None))
    for record in records:
        record.row.speedup_low = record.row.speedup_high = None
    run = runs.write_run(tmp_path / "run", records)
    with pytest.raises(UsageError, match="no data for --figure crossover: no speedup over a baseline has an interval"):
        make_figure([run], FigureRequest(figure="crossover"))
    made = make_figure([run], FigureRequest(figure="speed", filters={"heads": (4, 4)}))
    assert made.caption.endswith("batch 1, 4 heads of size 64."), "the machine is not known"
    assert "None" not in made.config_text


def test_captions_of_time_and_state_are_one_sentence(run: Path) -> None:
    made = make_figure([run], FigureRequest(figure="memory", filters={"mode": ("forward", "decode")}))
    assert made.caption.startswith(
        "Peak memory of a call with its output by length; size of the decoding state by length."
    )


@pytest.mark.parametrize("figure", plot.FIGURES)
def test_runs_with_little_data_say_what_is_missing(tmp_path: Path, figure: Any) -> None:
    few = [record for record in runs.speed(lengths=(512,)) if record.row.variant in ("full", "linear")]
    run = runs.write_run(tmp_path / "run", few)
    if figure in ("speed", "memory", "crossover"):
        for file_format in ("tex", "png"):
            made = make_figure([run], FigureRequest(figure=figure, file_format=file_format))  # type: ignore[arg-type]
            assert made.labels == ("linear",)
            assert "Errors against exact attention were not measured." in made.notes
            assert b"& Error" not in made.pages[0]
        return
    with pytest.raises(UsageError, match=f"plot: no data for --figure {figure}: .*run a suite"):
        make_figure([run], FigureRequest(figure=figure))


def test_invalid_requests_are_errors() -> None:
    with pytest.raises(UsageError, match=r"--width 40in: the width must be 1.5 to 20 inches"):
        FigureRequest(figure="speed", width=40)
    with pytest.raises(UsageError, match="--against applies to --figure front and perplexity, not to --figure speed"):
        FigureRequest(figure="speed", against="state")
