"""Scoreboards of tasks: pooled over runs, best first, with the baseline and the number of samples of each mean."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import learned_runs as learnt
import pytest
import report_runs as runs

from efficient_attn.report.site.scoreboards import Scoreboard, list_scoreboards
from efficient_attn.report.site.site_data import read_site_data
from efficient_attn.results.rows import Record
from efficient_attn.results.section import Column, Section

SECTIONS = [
    Section(name="swap", task="swap", title="Swap", layout="swap"),
    Section(name="retrieval", task="retrieval", title="Found", layout="retrieval"),
    Section(
        name="mine",
        task="mine",
        title="Mine",
        columns=(Column(name="loss", heading="Surprise"),),
        x="seq_len",
        y="loss",
    ),
]


def _list(folder: Path, *runs_of_records: Iterable[Record], task: str) -> list[Scoreboard]:
    paths = [runs.write_run(folder / f"run{i}", records, runs.about()) for i, records in enumerate(runs_of_records)]
    return list_scoreboards(read_site_data(paths, {}).rows, task, SECTIONS)


def _texts(board: Scoreboard) -> list[list[str]]:
    return [[cell.text for cell in row] for row in board.table.rows]


def _marks(board: Scoreboard) -> list[str]:
    return [row[0].mark for row in board.table.rows]


def test_trained_scores_are_ranked_with_computed_ones(tmp_path: Path) -> None:
    records = [*learnt.seeds("linear", (0.7, 0.72, 0.74)), *learnt.seeds("full", (0.9, 0.92, 0.94))]
    (board,) = _list(tmp_path, [*records, *learnt.unable("mqa")], task="recall")
    assert board.table.caption == "recall, length 64"
    assert board.table.head == ("Mechanism", "Accuracy", "Mean over", "Parameters")
    assert [row[:3] for row in _texts(board)] == [
        ["full", "92.0% (87.0\u201397.0)", "3 seeds"],
        ["linear", "72.0% (67.0\u201377.0)", "3 seeds"],
        ["mqa", "not learned (5 attempts)", "1 seed"],
        ["chance", "10.0%", "computed"],
    ]
    assert _marks(board) == ["base", "", "", "null"]
    assert board.config_text == "float32, 4 heads of size 16"


def test_fewer_bits_are_better(tmp_path: Path) -> None:
    bits = {"metric": "bits a token", "train_chance": 8.0, "train_majority": 5.0}
    records = [*learnt.seeds("full", (2.5, 2.6), **bits), *learnt.seeds("linear", (2.0, 2.1), **bits)]
    (board,) = _list(tmp_path, records, task="recall")
    assert board.table.head[1] == "Bits a token (lower is better)"
    assert [row[0] for row in _texts(board)] == ["linear", "full", "majority", "chance"]


def test_captions_name_the_baseline_if_there_are_several(tmp_path: Path) -> None:
    records = [*learnt.seeds("full", (0.9, 0.92)), *learnt.seeds("gru", (0.5, 0.52), baseline="gru")]
    boards = _list(tmp_path, records, task="recall")
    assert [board.table.caption for board in boards] == [
        f"recall, length 64, baseline {name}, suite quickstart" for name in ("full", "gru")
    ]


def test_errors_are_ranked_with_null_predictors(tmp_path: Path) -> None:
    (board,) = _list(tmp_path, runs.fidelity((0, 2, 5)), task="fidelity")
    assert board.table.head == ("Mechanism", "Relative error (lower is better)", "Mean over", "Runs")
    texts = _texts(board)
    assert (texts[0][0], board.table.rows[0][0].mark, texts[0][2]) == ("full", "base", "3 layers")
    assert texts[-1][:2] == ["null: zero", "1.00"]
    values = [row[1].sort for row in board.table.rows]
    assert values == sorted(values, key=float)


def _segments(variant: str, losses: Iterable[float], **known: object) -> Iterable[Record]:
    for number, loss in enumerate(losses):
        made = runs.row(
            variant, task="swap", mode="prefill", inputs="tiny", seq_len=2048, causal=True, status="ok",
            latency_ms=10.0, baseline="full", metric="nats a token", **known,
        )  # fmt: skip
        made.case_key += f"/{number}"
        made.extra = {"swap.loss": loss, "swap.divergence": loss - 3.0, "swap.segment": number}
        yield Record(made)


def test_swapped_models_are_ranked_by_perplexity_and_layers_by_themselves(tmp_path: Path) -> None:
    whole = [*_segments("linear", (3.5, 3.6)), *_segments("full", (3.0, 3.0)), *_segments("mqa", (3.1, 3.2))]
    single = [one for layer in (0, 1) for one in _segments("mqa", (3.01,), layer=layer)]
    first, second = _list(tmp_path, [*whole, *single], task="swap")
    assert [row[0] for row in _texts(first)] == ["full", "mqa", "linear"]
    assert first.table.head[1] == "Perplexity, over the model's own (lower is better)"
    assert _texts(first)[2][1].startswith("1.73x (")
    assert _texts(first)[2][-2:] == ["2 segments", "1 run"]
    assert _marks(first) == ["base", "", ""]
    assert second.table.caption == "tiny, N = 2,048, causal, one layer at a time"
    assert [[row[0], *row[2:]] for row in _texts(second)] == [["mqa", "2 layers", "1 run"]]


def test_swapped_encoders_are_ranked_by_the_error_of_hidden_states(tmp_path: Path) -> None:
    records = []
    for variant, error in (("linear", 0.5), ("mqa", 0.2)):
        for record in _segments(variant, (3.0, 3.0)):
            record.row.extra = {"swap.hidden_error": error, "swap.segment": record.row.extra["swap.segment"]}
            records.append(record)
    (board,) = _list(tmp_path, records, task="swap")
    assert [row[0] for row in _texts(board)] == ["mqa", "linear"]


def test_retrieval_accuracies_have_intervals_and_chance(tmp_path: Path) -> None:
    records = []
    for variant, share in (("linear", 0.2), ("full", 0.9)):
        made = runs.row(variant, task="retrieval", inputs="tiny:single", seq_len=1024, status="ok", accuracy=share)
        told = {"needles": "single", "chance": 0.1, "questions": 80, "accuracy_low": share - 0.1}
        made.extra = {f"retrieval.{name}": value for name, value in (told | {"accuracy_high": share + 0.05}).items()}
        records.append(Record(made))
    (board,) = _list(tmp_path, records, task="retrieval")
    assert [row[:2] for row in _texts(board)] == [
        ["full", "90.0% (80.0%\u201395.0%)"],
        ["linear", "20.0% (10.0%\u201325.0%)"],
        ["chance", "10.0%"],
    ]


def test_tables_of_other_tasks_are_left_to_the_pages_of_their_runs(tmp_path: Path) -> None:
    records = [Record(runs.row("full", task="mine", mode="mine", seq_len=n, status="ok", loss=0.5)) for n in (8, 16)]
    assert _list(tmp_path, [*records, *runs.speed()], task="mine") == []
    assert _list(tmp_path / "speed", runs.speed(), task="speed") == []
    assert _list(tmp_path / "none", runs.fidelity((0,)), task="none") == []


def _on(machine: str, factor: float, records: Iterable[Record]) -> Iterable[Record]:
    """The records of another run, with errors times a factor."""
    for record in records:
        row = record.row
        row.machine, row.run_id, row.threads, row.case_key = machine, f"run-{machine}", 7, f"{machine}/{row.case_key}"
        row.relative_error = (row.relative_error or 0.0) * factor
        yield record


def test_errors_of_several_machines_are_one_line_with_the_range_over_runs(tmp_path: Path) -> None:
    (one,) = _list(tmp_path / "one", runs.fidelity(), task="fidelity")
    others = [_on("A", 1.0, runs.fidelity()), _on("B", 1.1, runs.fidelity())]
    (pooled,) = _list(tmp_path / "two", *others, task="fidelity")
    assert [row[0].text for row in pooled.table.rows] == [row[0].text for row in one.table.rows]
    alone, both = ({row[0].text: row for row in board.table.rows} for board in (one, pooled))
    linear, before = both["linear"], alone["linear"]
    assert linear[1].sort == pytest.approx(1.05 * (before[1].sort or 0))
    assert linear[2].text == before[2].text == "3 layers"
    assert linear[3].text.startswith("2 runs: ")
    assert "machine" not in pooled.config_text
    (equal,) = _list(tmp_path / "equal", *(_on(name, 1.0, runs.fidelity()) for name in "AB"), task="fidelity")
    assert {row[3].text for row in equal.table.rows if row[0].mark != "null"} == {"2 runs"}


def test_perplexities_are_paired_over_the_segments_that_a_mechanism_has(tmp_path: Path) -> None:
    first = [*_segments("linear", (3.5, 3.6)), *_segments("full", (3.0, 3.0))]
    second = [*_segments("mqa", (3.1,), run_id="b", machine="B"), *_segments("full", (3.0,), run_id="b", machine="B")]
    (board,) = _list(tmp_path, first, second, task="swap")
    assert [[row[0], *row[-2:]] for row in _texts(board)] == [
        ["full", "2 segments", "2 runs"],
        ["mqa", "1 segment", "1 run"],
        ["linear", "2 segments", "1 run"],
    ]
