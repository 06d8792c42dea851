"""The tables and the picture of README and measured-results.md agree with the published rows."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import figures
import pandas as pd
import published_tables
import pytest
import report_runs

from efficient_attn import units
from efficient_attn.report.drawing.panel_data import Panel
from efficient_attn.report.select import add_labels
from efficient_attn.results.rows import Record

README, MEASURED = figures.README, figures.MEASURED
INTERVAL = re.compile(r"(\d[\d.,]*)x \(([\d.]+)-([\d.]+)\)")


def test_documents_have_the_published_figures() -> None:
    assert figures.main(check=True) == 0, "run: python suites/trials/figures.py"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", ["README", "MEASURED"])
def test_a_changed_figure_is_detected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = getattr(figures, name).read_text(encoding="utf-8")
    generated = re.search(r"<!-- (?:figures|exact) -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert generated
    changed = INTERVAL.sub("99.9x (1.0-2.0)", generated[1], count=1)
    copy = tmp_path / "copy.md"
    copy.write_text(text.replace(generated[1], changed), encoding="utf-8")
    monkeypatch.setattr(figures, name, copy)
    monkeypatch.setattr(figures, "PICTURE", tmp_path / "picture.png")
    assert figures.main(check=True) == 1
    assert figures.main(check=False) == 0
    assert copy.read_text(encoding="utf-8") == text
    copy.write_text(text.replace("<!-- end -->", ""), encoding="utf-8")
    assert figures.main(check=True) == 2


def _make_tables() -> dict[str, str]:
    tables = {name: published_tables.make_timing_table(table) for name, table in published_tables.TABLES.items()}
    return tables | {"libraries": published_tables.make_peer_table(), "figures": figures.make_table()}


@pytest.mark.sampled(6)
def test_every_speedup_has_an_interval_that_contains_it() -> None:
    for name, table in _make_tables().items():
        found = INTERVAL.findall(table)
        assert len(found) >= 10, name
        assert len(found) == len(re.findall(r"\dx\b", re.sub(r"[\d.]+x the perplexity", "", table))), name
        assert all(float(low) <= float(value.replace(",", "")) <= float(high) for value, low, high in found), name


@pytest.mark.sampled(6)
def test_all_processors_with_rows_are_shown() -> None:
    timings = published_tables.load_timings()
    tables = _make_tables()
    text = "".join(tables.values())
    assert [name for name in timings["processor"].unique() if name not in text] == []
    assert {"AMD Zen 3", "AMD Zen 4", "AMD Zen 5", "Intel Xeon Emerald Rapids"} <= set(timings["processor"])
    marked = [line for line in text.splitlines() if "AMD Zen 5" in line]
    assert marked
    assert all("AMD Zen 5 (protocol 2, older code)" in line for line in marked)
    assert "older code" not in tables["figures"]


def _timing(**known: Any) -> dict[str, Any]:
    base = {
        "suite": "promises", "variant": "linear", "baseline": "full", "mode": "forward", "causal": False,
        "seq_len": 8192, "heads": 4, "head_dim": 64, "latency_ms": 1.0, "speedup": 2.0, "speedup_low": 1.5,
        "speedup_high": 2.5, "processor": "AMD Zen 4", "run": "new", "note": "", "status": "ok",
    }  # fmt: skip
    return base | known


def test_the_latest_current_row_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    older, current, latest, other = (
        _timing(note="protocol 3, older code", run="older", speedup=9.0),
        _timing(run="current", speedup=1.8),
        _timing(run="latest", speedup=2.0),
        _timing(run="alone", processor="AMD Zen 5", note="protocol 3, older code"),
    )
    timings = pd.DataFrame([older, current, latest, _timing(run="latest", speedup=7.0), other])
    monkeypatch.setattr(published_tables, "load_timings", lambda: timings)
    lines = published_tables.make_timing_table(published_tables.TABLES["exact"]).splitlines()[2:]
    assert lines == [
        "| `linear` | AMD Zen 4 | 2.00x (1.50-2.50) | - | - | - | latest |",
        "| `linear` | AMD Zen 5 (protocol 3, older code) | 2.00x (1.50-2.50) | - | - | - | alone |",
    ]


def test_measurements_that_differ_are_named_with_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = pd.DataFrame([
        _timing(run="early", suite="quickstart_of_another_suite", speedup=3.0, speedup_low=2.8, speedup_high=3.2),
        _timing(run="near", speedup=2.4),
        _timing(run="latest", part="main"),
        _timing(run="latest", part="other", speedup=1.2, speedup_low=1.1, speedup_high=1.3),
        _timing(run="latest", variant="performer", speedup=9.0, speedup_low=8.9, speedup_high=9.1),
    ])  # fmt: skip
    monkeypatch.setattr(published_tables, "load_timings", lambda: timings)
    line = published_tables.make_timing_table(published_tables.TABLES["exact"]).splitlines()[2]
    runs = "latest; 8,192 also 3.00x (2.80-3.20) in early and 1.20x (1.10-1.30) in latest, other"
    assert line == f"| `linear` | AMD Zen 4 | 2.00x (1.50-2.50) | - | - | - | {runs} |"


def test_the_start_of_a_speedup_names_its_processors() -> None:
    def start(*lows: tuple[str, int, float]) -> str:
        rows = [_timing(processor=p, seq_len=n, speedup_low=low) for p, n, low in lows]
        return figures.find_start(pd.DataFrame(rows))

    assert start(("A", 512, 0.9), ("A", 1024, 1.1), ("A", 2048, 1.2)) == "1,024"
    assert start(("A", 512, 1.1), ("A", 1024, 0.9), ("A", 2048, 1.2)) == "2,048"
    assert start(("A", 512, 1.1), ("A", 1024, 1.1), ("A", 2048, 0.9)) == "not shown"
    fast = ("A", 512, 1.1), ("A", 1024, 1.2), ("A", 2048, 1.2)
    assert start(*fast, ("B", 200, 0.5), ("B", 2048, 1.2)) == "512 (A)"
    both = start(*fast, ("B", 512, 0.5), ("B", 1024, 1.2), ("B", 2048, 1.2))
    assert both == "512 (A), 1,024 (B)"


def test_the_picture_is_a_chart_of_the_published_perplexities(tmp_path: Path) -> None:
    figures.draw_picture(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    rows = add_labels(figures.gather([figures.ROOT / "results" / figures.LONG_MODEL_RUN]).rows)
    panel = figures.make_picture()
    assert isinstance(panel, Panel)
    notes = {line.label: line.note for line in panel.lines}
    assert len(notes) == rows["label"].nunique()
    assert notes["full"] == "1.00x"
    losses = rows.groupby("label")["swap.loss"].mean()
    linear = math.exp(losses["linear"] - losses["full"])
    assert notes["linear"] == units.ratio(linear)


@pytest.mark.sampled(6)
def test_quality_names_model_length_and_direction() -> None:
    lines = figures.make_table().splitlines()[2:]
    cells = [line.split(" | ")[-1] for line in lines]
    conditions = re.compile(r"\(\w[\w-]*, N = 8,192, (causal|bidirectional), mean over \d+ (layers|text segments)")
    exact = "exact attention of models trained with"
    assert all(conditions.search(cell) or "not measured" in cell or cell.startswith(exact) for cell in cells)
    assert any(conditions.search(cell) for cell in cells)


@pytest.mark.parametrize(
    ("variant", "causal", "start"),
    [
        ("sliding_window:window=512", True, "relative error 0.5"),  # no perplexity: the error, measured with 508
        ("linear", True, "90.0x the perplexity (SmolLM2-135M, N = 8,192, causal"),  # before the error
        ("cosformer", True, "not measured"),  # only at 2,048
        ("linear", False, "not measured"),  # only causal
        ("gqa:kv_heads=2", True, "exact attention of models trained with 2 key-value heads"),
    ],
)
def test_quality_is_that_at_8192_or_not_measured(
    variant: str, causal: bool, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"task": "fidelity", "inputs": "smollm2@1", "causal": True, "layer": 5}
    errors = {("sliding_window:window=508", 8192): 0.5, ("linear", 8192): 1.2, ("cosformer", 2048): 1.1}
    rows = [report_runs.row(name, **known, seq_len=n, relative_error=error) for (name, n), error in errors.items()]
    for name, loss in (("full", 2.0), ("linear", 2.0 + math.log(90))):
        swap = {"task": "swap", "inputs": "smollm2:text@2", "causal": True, "seq_len": 8192, "baseline": "full"}
        rows.append(report_runs.row(name, **swap, extra={"swap.loss": loss, "swap.segment": 0}))
    report_runs.write_run(tmp_path / "results" / "fidelity_long", map(Record, rows))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    figures.read_quality.cache_clear()
    try:
        text = figures.format_quality(figures.Advice("a use", variant, "forward", 8192, causal))
    finally:
        figures.read_quality.cache_clear()
    assert text.startswith(start)
    assert ("measured with sliding_window:window=508" in text) == ("512" in variant)


def test_readme_is_short_and_has_few_figures() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    written = "".join(re.findall(r"<!-- (?:output|figures) -->\n(.*?)<!-- end -->", text, re.DOTALL))
    # conditions, processors and intervals do not count as figures
    written = re.sub(r"\([^)]*\bN = [^)]*\)|Zen \d|\([\d.]+-[\d.]+\)", "", written)
    assert 10 <= len(re.findall(r"(?<![\w=])\d[\d.,]*", written)) <= 40


WINDOW, SINKS = "sliding_window:window=128", "attention_sinks:n_sink=4:window=128"
STREAM = figures.Advice("a stream", WINDOW, "decode", 16384)


def _decode(variant: str, speedup: float, processor: str = "A", run: str = "one", state: int = 500) -> dict[str, Any]:
    return _timing(
        variant=variant, mode="decode", causal=True, seq_len=16384, speedup=speedup, processor=processor, run=run,
        state_bytes=state,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("timings", "ratio"),
    [
        # 1.13 times the time on one processor and 1.06 on the other: 1.1 in the geometric mean
        ([_decode(WINDOW, 61.5), _decode(SINKS, 54.3), _decode(WINDOW, 71.0, "B"), _decode(SINKS, 66.7, "B")], "1.10x"),
        ([_decode(WINDOW, 61.5), _decode(SINKS, 54.3)], None),
        ([_decode(WINDOW, 60.0), _decode(SINKS, 60.0, state=600)], None),  # more state
        # only runs that timed both count
        ([_decode(WINDOW, 60.0), _decode(SINKS, 60.0), _decode(WINDOW, 90.0, run="two")], "1.00x"),
        ([_decode(WINDOW, 60.0), _decode(SINKS, 60.0, "B")], None),
        ([_decode(WINDOW, 60.0), _decode("linear", 60.0)], None),  # of unknown quality
    ],
)
def test_a_better_neighbour_replaces_the_advice(
    timings: list[dict[str, Any]], ratio: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = {"task": "swap", "inputs": "smollm2:text@2", "causal": True, "seq_len": 8192, "baseline": "full"}
    rows = [
        report_runs.row(name, **swap, extra={"swap.loss": loss + segment, "swap.segment": segment})
        for name, loss in (("full", 2.0), (WINDOW, 2.6), (SINKS, 2.06))
        for segment in range(3)
    ]
    for row in rows:
        row.case_key += f"/{row.extra['swap.segment']}"
    report_runs.write_run(tmp_path / "results" / "swap_long", map(Record, rows))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    figures.read_quality.cache_clear()
    try:
        better = figures.find_better(STREAM, pd.DataFrame(timings))
    finally:
        figures.read_quality.cache_clear()
    expected = f"{SINKS} has {ratio} its time, 1.00x its state and 1.06x instead of 1.82x the perplexity (SmolLM2-135M"
    assert better.describe().startswith(expected) if better else ratio is None
