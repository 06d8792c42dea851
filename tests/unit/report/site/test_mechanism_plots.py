"""Plots over length on a mechanism's page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import pandas as pd
import report_runs as runs

from efficient_attn.report import select
from efficient_attn.report.gather import Frame
from efficient_attn.report.site.mechanism_plots import MechanismPlots, draw_plots, split_by_mechanism

MACHINES = {"Xeon-x2-15GiB": "Xeon", "B": "B"}


def _frame(records: Iterable[runs.Record]) -> Frame:
    rows = pd.DataFrame([asdict(record.row) | {"baseline": record.row.baseline or "full"} for record in records])
    return select.add_labels(rows.assign(baseline_kv_heads=4))


def _draw(records: Iterable[runs.Record], name: str = "linear") -> MechanismPlots | None:
    rows = _frame(records)
    return draw_plots(split_by_mechanism(rows)[name], rows, MACHINES)


def _list_titles(found: MechanismPlots | None) -> list[str]:
    return [plot.panel.title for plot in found.plots] if found else []


def test_speedup_time_and_memory_are_drawn_over_length() -> None:
    found = _draw([*runs.speed(), *runs.speed(lengths=(64,), machine="B"), *runs.speed(causal=True, lengths=(64, 128))])
    assert found is not None
    assert found.note == "Xeon, cpu, float32, 1 thread, batch 1, 4 heads of size 64"
    slices = [f"{kind}: forward, bidirectional" for kind in ("Speedup", "Time", "Peak memory")]
    assert _list_titles(found) == slices
    labels = [[line.label for line in plot.panel.lines] for plot in found.plots]
    assert labels == [["linear"], ["full", "linear"], ["full", "linear"]]


def test_decoding_has_its_state() -> None:
    assert _list_titles(_draw(runs.decode(), "mqa")) == ["Speedup: decode", "Time: decode", "State: decode"]


def test_one_length_has_no_plots_and_exact_attention_no_speedup() -> None:
    assert _draw(runs.speed(lengths=(64,))) is None
    assert _list_titles(_draw(runs.speed(), "full")) == [
        "Time: forward, bidirectional",
        "Peak memory: forward, bidirectional",
    ]


def test_speedups_over_other_mechanisms_are_left_out() -> None:
    records = list(runs.speed())
    for record in records:
        record.row.baseline = "peer_x"
    assert _list_titles(_draw(records)) == ["Time: forward, bidirectional", "Peak memory: forward, bidirectional"]
