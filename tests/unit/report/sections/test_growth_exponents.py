"""Growth exponents on the page: sweeps, marks of verdicts, missing claims, escaping, and the plot."""

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
from efficient_attn.tasks.complexity.complexity_task import COMPLEXITY

HOSTILE = "<b>full</b>|&"
VERDICTS = {
    "full": "reproduced",
    "gru": "contradicted: grows faster",
    "lstm": "reproduced: grows more slowly",
    "linear": "inconclusive",
    "dense": "inconclusive: less than 4 octaves",
}


def sweep(variant: str, of: str = "layer", along: str = "length", part: str = "layers", **extra: Any) -> Record:
    config = {"task": "complexity", "seq_len": 1024, "inputs": f"growing {along}", "mode": "forward"}
    row = runs.row(variant, **config, part=part, latency_ms=2.5)
    row.case_key = f"{part}/{of}/{along}/{row.case_key}"
    defaults = {"of": of, "along": along, "smallest": 64, "reached": 65536, "weights": 24576, "sequential": 1024}
    defaults |= {"time_exponent": 1.0, "time_low": 0.9, "time_high": 1.1}
    row.extra = {k: v for k, v in {**defaults, **extra}.items() if v is not None}
    return Record(row)


def claimed(variant: str, verdict: str, **columns: Any) -> Record:
    claim = {"time_claim": "N D^2", "time_claimed": 1.0, "time_verdict": verdict, "source": f"who says {variant}"}
    return sweep(variant, **{**claim, **columns})


def records() -> Iterator[Record]:
    for variant, verdict in VERDICTS.items():
        yield claimed(variant, verdict)
    yield sweep("lstmn", weights=None, sequential=None, stopped="a call would take about 4 s at length 131,072")
    yield claimed(HOSTILE, "reproduced", source="<script>alert(1)</script>", time_claim="<i>N</i>")
    yield claimed("full", "reproduced", along="width", weights_claimed=12288, sequential_claimed=1, time_low=-0.004)
    yield claimed("gru", "reproduced", along="width", time_exponent=-0.001, time_low=None, time_high=None)
    yield sweep("full", "mechanism", part="mechanisms", memory_exponent=1.25, memory_low=1.2, memory_high=1.3)
    yield claimed("full", "reproduced", of="mechanism", along="causal", part="mask", smallest=1, reached=2)


def chapter(folder: Path) -> Any:
    shown = page.make_content(gather.gather([folder]))
    (growth,) = [section for section in shown.sections if section.title == "Growth and claims"]
    return growth


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    about = runs.about() | {"sections": [section.as_json() for section in COMPLEXITY.sections]}
    return runs.write_run(tmp_path_factory.mktemp("page") / "run", list(records()), about)


@pytest.fixture(scope="module")
def block(run: Path) -> Any:
    (growth,) = chapter(run).blocks
    return growth


def cells(table: Any, variant: str, grows: str = "N") -> dict[str, Any]:
    (row,) = [r for r in table.rows if r[0].text == variant and r[1].text == grows]
    return dict(zip(table.head, row, strict=True))


def test_each_part_and_kind_has_a_table(block: Any) -> None:
    assert [table.caption for table in block.tables] == ["layers: layers", "mechanisms: mechanisms", "mask: mechanisms"]
    layers, mechanisms, mask = block.tables
    assert len(layers.rows) == 9
    assert layers.head == ("Variant", "Grows", "Sizes", "Time", "Claimed", "Verdict", "Steps", "Weights",
                           "Longest call", "Ended by")  # fmt: skip
    assert mechanisms.head == ("Variant", "Grows", "Sizes", "Time", "Memory", "Steps", "Weights", "Longest call")
    assert "Sizes" not in mask.head
    assert cells(mask, "full", "mask")["Verdict"].text == "reproduced"


def test_each_sweep_has_a_row(block: Any) -> None:
    row = {name: cell.text for name, cell in cells(block.tables[0], "gru").items()}
    assert (row["Sizes"], row["Time"], row["Claimed"]) == ("64 to 65,536", "1.00 (0.90 to 1.10)", "1.00: N D^2")
    assert (row["Steps"], row["Weights"], row["Longest call"]) == ("1,024", "24,576", "2.50 ms")
    assert cells(block.tables[1], "full")["Memory"].text == "1.25 (1.20 to 1.30)"
    other = {name: cell.text for name, cell in cells(block.tables[0], "full", "D").items()}
    assert (other["Steps"], other["Weights"]) == ("1,024 (claimed 1)", "24,576 (claimed 12,288)")


def test_values_that_round_to_zero_have_no_sign(block: Any) -> None:
    assert cells(block.tables[0], "full", "D")["Time"].text == "1.00 (0.00 to 1.10)"
    assert cells(block.tables[0], "gru", "D")["Time"].text == "0.00"


def test_verdicts_have_marks(block: Any) -> None:
    marks = {variant: cells(block.tables[0], variant)["Verdict"] for variant in VERDICTS}
    assert {variant: cell.text for variant, cell in marks.items()} == VERDICTS
    signs = [cell.mark for cell in marks.values()]
    assert signs == ["faster", "slower", "faster", "unclear", "unclear"]


def test_sweeps_without_claims_have_no_verdict(block: Any) -> None:
    row = {name: cell.text for name, cell in cells(block.tables[0], "lstmn").items()}
    assert (row["Claimed"], row["Verdict"], row["Steps"], row["Weights"]) == ("\u2013",) * 4
    assert row["Ended by"] == "a call would take about 4 s at length 131,072"
    assert "gru: who says gru" in block.tables[0].note
    assert "lstmn:" not in block.tables[0].note
    assert not block.tables[1].note


def test_the_plot_has_a_row_per_sweep(block: Any) -> None:
    length, width = (plot.panel for plot in block.plots)
    assert isinstance(length, Panel)
    assert isinstance(width, Panel)
    assert [line.label for line in reversed(length.lines)] == [*VERDICTS, "lstmn", HOSTILE]  # the first on top
    rows = {line.label: (line.x, line.left, line.right, line.reference) for line in length.lines}
    assert rows["full"] == ([1.0], [0.9], [1.1], 1.0)
    assert rows["lstmn"] == ([1.0], [0.9], [1.1], None)
    (gru, _) = width.lines
    assert (gru.label, gru.x, gru.left, gru.right, gru.reference) == ("gru", [-0.001], None, None, 1.0)
    assert (length.title, width.title) == (
        "Exponent of time: layers: layers in N",
        "Exponent of time: layers: layers in D",
    )
    assert min(length.ticks) < 0.9 < 1.1 < max(length.ticks)
    assert length.xlabel == "Exponent of time; open squares: claimed"


def test_the_report_has_plots_and_escaped_names(run: Path, tmp_path: Path) -> None:
    write_report([run], tmp_path / "report")
    names = {path.name for path in (tmp_path / "report/plots").iterdir()}
    assert {f"growth-layers-layer-{along}.{end}" for along in ("length", "width") for end in ("png", "svg")} == names
    html = (tmp_path / "report/report.html").read_text()
    assert "&lt;b&gt;full&lt;/b&gt;|&amp;" in html
    for tag in ("<b>full", "<script>alert", "<i>N</i>"):
        assert tag not in html
    assert "claimed" in (tmp_path / "report/plots/growth-layers-layer-length.svg").read_text()


def test_no_section_if_all_sweeps_failed(tmp_path: Path) -> None:
    failed = sweep("full")
    failed.row.status, failed.row.extra = "oom", {}
    about = runs.about() | {"sections": [section.as_json() for section in COMPLEXITY.sections]}
    folder = runs.write_run(tmp_path / "run", [failed, *runs.speed()], about)
    assert "Growth and claims" not in [section.title for section in page.make_content(gather.gather([folder])).sections]
