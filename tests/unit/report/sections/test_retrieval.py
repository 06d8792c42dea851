"""The retrieval section: the table, skipped cases, and heatmaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report import gather, page
from efficient_attn.report.drawing.heatmap import Heatmap
from efficient_attn.report.write import write_report
from efficient_attn.results.rows import Record
from efficient_attn.tasks.retrieval import DEPTHS, RETRIEVAL

SKIP_REASON = (
    "the original model is too weak: full finds 78% of 160 answers (71% to 84%) of single needles, 90% are needed"
)


def retrieval_records(needles: str, length: int, shares: dict[str, float], **columns: Any) -> Iterator[Record]:
    for variant in ("full", "sliding_window:window=128", "linear"):
        config = {"task": "retrieval", "seq_len": length, "inputs": f"tiny:mine@1:{needles}", "causal": True}
        row = runs.row(variant, **config, baseline="full", **columns)
        row.case_key = f"retrieval/{needles}/{row.case_key}"
        row.extra = {"needles": needles, "chance": 0.1, "prior": 0.12}
        if variant in shares:
            share = shares[variant]
            row.accuracy, row.state_bytes = share, 1024 * length
            row.extra |= {"questions": 80, "accuracy_low": share - 0.1, "accuracy_high": share + 0.1, "margin": 1.0}
            row.extra |= {f"depth_{depth}": share if depth < 90 else None for depth in DEPTHS}
        else:
            row.status, row.reason = "skipped", SKIP_REASON
        yield Record(row)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shares = {"full": 0.9, "sliding_window:window=128": 0.3, "linear": 0.1}
    records = [
        *retrieval_records("single", 1024, shares),
        *retrieval_records("single", 2048, {**shares, "full": 0.8}),
        *retrieval_records("multi_key", 2048, {"full": 0.14}),
    ]
    about = runs.about() | {"sections": [section.as_json() for section in RETRIEVAL.sections]}
    return runs.write_run(tmp_path / "run", records, about)


def _chapter(run: Path) -> Any:
    shown = page.make_content(gather.gather([run]))
    (chapter,) = [section for section in shown.sections if section.title == "Found in a haystack"]
    return chapter


def test_the_table_has_accuracies_by_variant_and_length(run: Path) -> None:
    ((table,),) = [block.tables for block in _chapter(run).blocks]
    assert table.head[1:-1] == ("single, 1,024 tokens", "single, 2,048 tokens", "multi_key, 2,048 tokens")
    assert [row[0].text for row in table.rows] == ["full", "sliding_window:window=128", "linear"]
    assert table.rows[0][1].text == "90.0% (80.0\u2013100)"
    assert [cell.text for cell in table.rows[2]][2:] == [
        "10.0% (0\u201320.0)",
        "skipped: model too weak",
        "2.00 MiB",
    ]
    assert table.note == (
        "single, 1,024 tokens: 12.0% without the text. single, 2,048 tokens: 12.0% without the text. "
        f"multi_key, 2,048 tokens: 12.0% without the text. multi_key, 2,048 tokens: {SKIP_REASON}."
    )


def test_heatmaps_show_accuracy_by_depth_and_length(run: Path) -> None:
    (block,) = _chapter(run).blocks
    single, multi_key = (plot.panel for plot in block.plots)
    assert isinstance(single, Heatmap)
    assert isinstance(multi_key, Heatmap)
    assert (single.column_labels, single.row_labels) == (("1K", "2K"), ("10%", "30%", "50%", "70%", "90%"))
    assert [grid.label for grid in single.grids] == ["full", "sliding_window:window=128", "linear"]
    assert [list(row) for row in single.grids[0].shares] == [[0.9, 0.8]] * 4 + [[None, None]]
    assert [grid.label for grid in multi_key.grids] == ["full"]  # the other variants were skipped


def test_the_report_has_plots_and_skipped_variants(run: Path, tmp_path: Path) -> None:
    write_report([run], tmp_path / "report")
    names = {path.name for path in (tmp_path / "report/plots").iterdir()}
    assert {f"found-tiny-mine-1-{kind}.{end}" for kind in ("single", "multi-key") for end in ("png", "svg")} == names
    assert "skipped: model too weak" in (tmp_path / "report/report.html").read_text()


def test_passages_have_no_depths(tmp_path: Path) -> None:
    records = list(retrieval_records("passages", 128, {"full": 0.58, "linear": 0.4}))
    for record in records:
        record.row.extra |= {f"depth_{depth}": None for depth in DEPTHS}
    about = runs.about() | {"sections": [section.as_json() for section in RETRIEVAL.sections]}
    (block,) = _chapter(runs.write_run(tmp_path / "run", records, about)).blocks
    assert list(block.plots) == []
    assert block.tables[0].note.startswith("passages, 128 tokens: 12.0% by the words alone (tf-idf).")


def test_no_section_if_all_cases_were_skipped(tmp_path: Path) -> None:
    about = runs.about() | {"sections": [section.as_json() for section in RETRIEVAL.sections]}
    run = runs.write_run(tmp_path / "run", [*retrieval_records("single", 1024, {}), *runs.speed()], about)
    assert "Found in a haystack" not in [section.title for section in page.make_content(gather.gather([run])).sections]
