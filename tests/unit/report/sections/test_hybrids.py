"""The section on hybrids: choices by limit, the fastest within each, and the order of the greedy rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report import gather, page
from efficient_attn.report.drawing.panel_data import Panel
from efficient_attn.report.write import write_report
from efficient_attn.results.rows import Record
from efficient_attn.tasks.hybrid.hybrid_task import HYBRID

SPEC = "attention_sinks:n_sink=4:window=12"
# rule, limit, perplexity, speedup, layers with their own attention
CHOICES = [
    ("uniform", 0.02, 1.031, 1.6, "none"),
    ("greedy", 0.02, 1.015, 1.4, "3 5-6"),
    ("greedy", 0.01, 1.008, 1.3, "3 5-7"),
    ("linear", 0.01, 1.0125, 1.5, "3 5"),
    ("everywhere", None, 1.06, 1.9, "none"),
]


def _list_records(*, choices: list[Any]) -> Iterator[Record]:
    for number, layer in enumerate((4, 0, 7)):
        row = runs.row(SPEC, task="hybrid", seq_len=128, inputs=f"tiny:mine@1:step {number}", causal=True)
        row.case_key, row.loss = f"{row.case_key}/step {number}", 3.0
        row.extra = {
            "step": number,
            "layer": layer,
            "own_loss": 2.9,
            "alone": 1.001,
            "predicted": 1.001 + 0.001 * number,
        }
        row.extra["perplexity"] = 1.002 + 0.004 * number
        yield Record(row, {"layers": [0], "losses": [3.0]})
    for rule, limit, perplexity, speedup, own in choices:
        label = rule if limit is None else f"{rule} {limit:g}"
        row = runs.row(SPEC, task="hybrid", seq_len=1024, inputs=f"tiny:mine@1:{label}", causal=True, pairs=1024 * 100)
        row.case_key = f"{row.case_key}/{label}"
        row.state_bytes, row.peak_memory_bytes, row.loss = 2048, 4096, 3.0
        mechanism = "attention_sinks:n_sink=4:window=300" if rule == "uniform" else SPEC
        row.extra = {"rule": rule, "limit": limit, "own": own, "own_layers": len(own.split()), "mechanism": mechanism}
        row.extra |= {"own_loss": 2.9, "own_state_bytes": 8192, "step_ms": 1.0}
        row.extra["own_peak_bytes"] = 16384 if rule == "everywhere" else None
        if rule != "uniform":
            row.extra |= {"predicted": 1.005, "at_choice": 1.006}
        for name, value in (("perplexity", perplexity), ("speedup", speedup), ("step_speedup", 1.1)):
            row.extra |= {name: value, f"{name}_low": value - 0.002, f"{name}_high": value + 0.002}
        yield Record(row)


def _write(folder: Path, choices: list[Any]) -> Path:
    about = runs.about() | {"sections": [section.as_json() for section in HYBRID.sections]}
    return runs.write_run(folder, _list_records(choices=choices), about)


def _make_block(run: Path) -> Any:
    content = page.make_content(gather.gather([run]))
    (chapter,) = [section for section in content.sections if section.title == HYBRID.sections[0].title]
    (block,) = chapter.blocks
    return block


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return _write(tmp_path / "run", CHOICES)


def test_choices_are_listed_by_limit_and_rule_under_the_unmodified_model(run: Path) -> None:
    table = _make_block(run).tables[0]
    names = [row[0].text for row in table.rows]
    assert names == ["unmodified", "greedy 1%", "linear 1%", "greedy 2%", "uniform 2%", "everywhere"]
    greedy = dict(zip(table.head, (cell.text for cell in table.rows[1]), strict=True))
    assert greedy["Own attention in layers"] == "3 5-7 (2)"
    assert greedy["Predicted"] == "1.005x"
    assert greedy["Perplexity, over its own"] == "1.008x (1.006\u20131.010)"
    assert greedy["Mean pairs a query"] == "100"
    uniform = dict(zip(table.head, table.rows[4], strict=True))
    assert uniform["Rule"].subtext == "attention_sinks:n_sink=4:window=300"
    assert uniform["Predicted"].text == "\u2013"
    unmodified = dict(zip(table.head, (cell.text for cell in table.rows[0]), strict=True))
    assert (unmodified["States"], unmodified["Peak memory"]) == ("8.00 KiB", "16.0 KiB")


def test_the_fastest_choice_within_each_limit_is_named(run: Path, tmp_path: Path) -> None:
    first, second = _make_block(run).sentences
    assert "within 1% of the unmodified model's perplexity, 'greedy 1%' is the fastest: speedup 1.30x" in first
    assert "within 2% of the unmodified model's perplexity, 'linear 1%' is the fastest: speedup 1.50x" in second
    (sentence,) = _make_block(_write(tmp_path / "none", [("greedy", 0.005, 1.03, 1.4, "1")])).sentences
    assert sentence.endswith("within 0.5% of the unmodified model's perplexity: no choice.")


def test_the_order_of_the_greedy_rule_has_a_table_and_a_plot(run: Path) -> None:
    block = _make_block(run)
    assert [[cell.text for cell in row] for row in block.tables[1].rows] == [
        ["1", "4", "1.001x", "1.002x", "1.001x"],
        ["2", "0", "1.001x", "1.006x", "1.002x"],
        ["3", "7", "1.001x", "1.010x", "1.003x"],
    ]
    (panel,) = [picture for picture in block.pictures if picture.title.startswith("Perplexity by replaced layers")]
    assert isinstance(panel, Panel)
    measured, predicted = panel.lines
    assert measured.y == pytest.approx([0.002, 0.006, 0.01])
    assert predicted.y == pytest.approx([0.001, 0.002, 0.003])


def test_choices_are_plotted_against_the_time_of_a_pass(run: Path) -> None:
    (panel,) = [p for p in _make_block(run).pictures if p.title.startswith("Perplexity against time")]
    points = {line.label: line for line in panel.lines}
    assert set(points) == {"greedy 1%", "linear 1%", "greedy 2%", "uniform 2%", "everywhere"}
    greedy = points["greedy 1%"]
    assert (greedy.x[0], greedy.y[0]) == pytest.approx((1 / 1.3, 0.008))
    assert greedy.left == pytest.approx([1 / 1.302])
    assert greedy.low == pytest.approx([0.006])
    assert points["greedy 2%"].line_style.hollow


def test_a_run_that_ended_during_the_choice_has_a_page(tmp_path: Path) -> None:
    run = _write(tmp_path / "run", [])
    block = _make_block(run)
    assert len(block.tables) == 1
    assert write_report([run], tmp_path / "page").page.is_file()
