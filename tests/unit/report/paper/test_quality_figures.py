"""Perplexities of a pretrained model against cost: picture, table, notes, and errors of runs without them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs
from learned_runs import swapped

from efficient_attn.errors import UsageError
from efficient_attn.report import approximation_errors, gather, select
from efficient_attn.report.drawing.style import choose_line_styles
from efficient_attn.report.paper import quality_figures
from efficient_attn.report.paper.export import FigureRequest, make_figure
from efficient_attn.results.rows import Record

RESULTS = Path(__file__).parents[4] / "results"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_run(tmp_path_factory.mktemp("plot") / "run", swapped())


def table(run: Path, **asked: Any) -> list[list[str]]:
    """The cells of the table, its head first; intervals have cells of their own."""
    (page,) = make_figure([run], FigureRequest(figure="perplexity", file_format="tex", width=6.8, **asked)).pages
    return [x.strip().removesuffix(r" \\").split(" & ") for x in page.decode().splitlines() if x.endswith(r"\\")]


def test_perplexities_have_a_table_with_time_and_memory_or_state(run: Path) -> None:
    head, full, window, strided, linear = table(run)
    assert head[1:] == [r"\multicolumn{2}{c}{Time}", r"\multicolumn{2}{c}{Perplexity}", "Memory"]
    assert full == ["full", r"1.00$\times$", "", r"1.00$\times$", "", "--"], "no interval: it is the unit"
    assert window[:2] == [r"sliding\_window {\scriptsize window=128}", r"0.800$\times$"]
    assert re.fullmatch(r"\{\\scriptsize \(1\.\d\d--1\.\d\d\)\}", window[4])
    assert [strided[0].partition(" ")[0], linear[0]] == ["strided", "linear"], "lowest perplexity first"
    (head, full, *_) = table(run, against="state")
    assert [head[-1], full[-1]] == ["State", "3.81 MiB"]


def test_perplexities_above_the_scale_are_noted_only_where_some_are(run: Path) -> None:
    made = make_figure([run], FigureRequest(figure="perplexity", file_format="svg"))
    assert made.caption == (
        "Perplexity against time of a whole pass, with 95% intervals over segments of text. Measured: tiny, N = 2,048, "
        "causal, cpu, float32, 1 thread, batch 1, 4 heads of size 64, Xeon (2 cores)."
    )
    assert made.notes[0] == ("Line: Pareto front. Mechanisms above 10x are not to scale, and the line leaves them out.")
    assert "Segments at N = 2,048: 4." in made.notes
    assert "above 10x, not to scale" in made.pages[0].decode()
    only = make_figure([run], FigureRequest(figure="perplexity", file_format="svg", only=("sliding_window", "strided")))
    assert only.notes[0] == "Line: Pareto front."


@pytest.mark.parametrize(("width", "drawn"), [(3.3, 12), (7.0, 14)])
def test_measured_perplexities_are_drawn_as_far_as_labels_have_room(width: float, drawn: int) -> None:
    made = make_figure([RESULTS / "swap_long"], FigureRequest(figure="perplexity", file_format="svg", width=width))
    assert len(made.labels) == drawn
    assert made.labels[0] == "attention_sinks:n_sink=4:window=1020", "the lowest perplexity"
    assert made.notes[-1] == f"Not shown: {', '.join(made.left_out)}."
    assert made.left_out[-1] == "retention"


def test_each_of_several_panels_has_its_best_mechanisms(tmp_path: Path) -> None:
    records = list(swapped())
    for i in range(15):
        for row in (x.row for x in swapped() if x.row.variant == "sliding_window:window=128"):
            case_key = f"{i}/{row.case_key}"
            records.append(Record(replace(row, variant=f"sliding_window:window={i}", case_key=case_key)))
    others = [x.row for x in swapped() if not x.row.variant.startswith("sliding_window")]
    records += [Record(replace(row, seq_len=4096, case_key=f"4096/{row.case_key}")) for row in others]
    request = FigureRequest(figure="perplexity", file_format="svg", filters={"seq_len": (2048, 4096)})
    made = make_figure([runs.write_run(tmp_path / "run", records)], request)
    assert len(made.labels) == 12
    assert {"strided:stride=8", "linear"} < set(made.labels), "the only ones of the second panel"


def test_the_front_has_no_point_that_a_mechanism_not_shown_dominates(tmp_path: Path) -> None:
    records = [*swapped(), *runs.speed(), *runs.fidelity()]
    for row in (x.row for x in records if x.row.variant == "linear"):
        row.speedup, row.speedup_low, row.speedup_high = 10.0, 9.0, 11.0
    run = runs.write_run(tmp_path / "run", records)
    rows = approximation_errors.add_errors(select.add_labels(gather.gather([run]).rows))
    styles = choose_line_styles(rows["label"])
    (swaps,) = quality_figures.list_swapped_rows(rows, {})
    figure = quality_figures.make_perplexity_figure("time", swaps, ["strided:stride=8"], styles)
    assert figure.panel.labels == ["full", "strided:stride=8"]
    assert figure.panel.pareto_front == ((1.0, 1.0),), "sliding_window is better in both"
    assert quality_figures.FRONT_NOTE in figure.symbols
    labels = [str(label) for label in dict.fromkeys(swaps.rows["label"])]
    assert (
        quality_figures.FRONT_NOTE not in quality_figures.make_perplexity_figure("time", swaps, labels, styles).symbols
    )
    timed = next(x for x in quality_figures.list_front_rows(rows, {}) if x.decision_table)
    figure = quality_figures.make_front_figure("time", timed, ["linear"], styles)
    assert figure.panel.labels == ["linear", "full"]
    assert figure.panel.pareto_front == (), "sliding_window is better in both"
    assert quality_figures.FRONT_NOTE in figure.notes


def test_notes_count_the_segments_of_each_mechanism(tmp_path: Path) -> None:
    fewer = [x for x in swapped() if x.row.variant != "linear" or x.row.extra["segment"] < 3]
    made = make_figure([runs.write_run(tmp_path / "fewer", fewer)], FigureRequest(figure="perplexity"))
    assert "Segments at N = 2,048: 4; linear 3." in made.notes
    made = make_figure([runs.write_run(tmp_path / "single", swapped(1))], FigureRequest(figure="perplexity"))
    assert made.caption.startswith("Perplexity against time of a whole pass. Measured:"), "there are no intervals"


def test_a_cost_that_was_not_measured_is_noted(tmp_path: Path) -> None:
    records = list(swapped())
    for record in records:
        record.row.peak_memory_bytes = None if record.row.variant == "linear" else 10**9
    run = runs.write_run(tmp_path / "run", records)
    asked: dict[str, Any] = {"figure": "perplexity", "against": "memory", "file_format": "svg"}
    made = make_figure([run], FigureRequest(**asked))
    assert "Not measured: the peak memory of a pass of linear." in made.notes
    with pytest.raises(UsageError, match="the peak memory of a pass is known of no two mechanisms that differ"):
        make_figure([run], FigureRequest(**asked, only=("linear",)))


def test_runs_without_perplexities_are_errors_and_front_names_the_other_figure(tmp_path: Path) -> None:
    single = [record for record in swapped() if record.row.variant == "full"]
    for records in (single, [*runs.speed()], [*swapped(layers=(0, 1))]):
        run = runs.write_run(tmp_path / str(len(records)), records)
        with pytest.raises(UsageError, match="no data for --figure perplexity: no perplexity of a pretrained model"):
            make_figure([run], FigureRequest(figure="perplexity"))
    run = runs.write_run(tmp_path / "run", swapped())
    with pytest.raises(UsageError, match=r"plot perplexities \(task swap\) with --figure perplexity"):
        make_figure([run], FigureRequest(figure="front"))


def test_a_table_has_the_perplexities_of_all_mechanisms() -> None:
    made = make_figure([RESULTS / "swap_long"], FigureRequest(figure="perplexity", file_format="tex"))
    assert (len(made.labels), made.left_out, len(made.pages)) == (19, (), 2)
    assert not any(note.startswith("Not shown") for note in made.notes)
