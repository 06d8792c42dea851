"""Main effects of a design: planted effects are reported with their scope, chance is not."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs
import tiny_suites

from efficient_attn.bench.planning.experimental_design import choose_points, list_sections
from efficient_attn.report import gather, page
from efficient_attn.report.write import write_report
from efficient_attn.results.rows import Record
from efficient_attn.results.section import Section

LEVELS: dict[str, list[Any]] = {
    "heads": [4, 12, 32],
    "seq_len": [72, 300, 1800],
    "dtype": ["float32", "bfloat16"],
    "causal": [False, True],
    "fill": ["full", "half", "drawn", "packed"],
}
SUITE = """
title = "Points"
measure = ["forward"]
baseline = "full"
[[variant]]
name = "full"
[[part]]
name = "points"
design = { points = 24 }
[part.axes]
heads = [4, 12, 32]
seq_len = [72, 300, 1800]
dtype = ["float32", "bfloat16"]
causal = [false, true]
fill = ["full", "half", "drawn", "packed"]
"""
# multipliers of the time at a factor's highest level, or at the named level; the others have none
FULL = {"heads": 8.0, "seq_len": 600.0, "half": 1.0, "drawn": 1.0, "packed": 0.4}
LINEAR = {"heads": 16.0, "seq_len": 25.0, "half": 1.0, "drawn": 1.0, "packed": 0.4, "bfloat16": 2.0}


def _section() -> Section:
    (section,) = list_sections("breadth", tiny_suites.parse(SUITE).suite)
    return section


def _scale(point: dict[str, Any], by: dict[str, float]) -> float:
    heads, length = (point["heads"] / 4) ** _power(by["heads"], 8), (point["seq_len"] / 72) ** _power(by["seq_len"], 25)
    return heads * length * by.get(point["fill"], 1.0) * by.get(point["dtype"], 1.0)


def _power(by: float, over: float) -> float:
    return math.log(by) / math.log(over)


def records(noise: float = 0.03, count: int = 24, **columns: Any) -> Iterator[Record]:
    points = [{}]
    for factor, values in LEVELS.items():
        points = [{**point, factor: value} for point in points for value in values]
    rng = random.Random(6)
    for point in choose_points(points, LEVELS, count, 0):
        base = 0.1 * _scale(dict(point), FULL)
        for variant, by in (("full", FULL), ("linear", LINEAR)):
            ms = base if variant == "full" else 0.05 * _scale(dict(point), by) * rng.lognormvariate(0, noise)
            ratio = base / ms
            row = runs.row(
                variant, **{"suite": "breadth", "part": "points", "mode": "forward", "baseline": "full"} | dict(point)
                | {"latency_ms": ms, "latency_ms_low": ms, "latency_ms_high": ms, "kv_len": point["seq_len"]}
                | {"speedup": ratio, "speedup_low": ratio * 0.99, "speedup_high": ratio * 1.01} | columns,
            )  # fmt: skip
            row.case_key += f"/{point['dtype']}-{point['fill']}"
            yield Record(row)


def _write(tmp_path: Path, rows: Any, *sections: Section) -> tuple[str, str]:
    data = [section.as_json() for section in sections or (_section(),)]
    run = runs.write_run(tmp_path / "run", rows, runs.about(sections=data))
    written = write_report([run], tmp_path / "out")
    return written.markdown.read_text(), written.page.read_text()


def test_planted_effects_are_reported_with_their_scope(tmp_path: Path) -> None:
    text, html = _write(tmp_path, records())
    for shown in (text, html):
        assert "Effects: points" in shown
    start = text.partition("## ")[0]  # the summary at the page's start
    config = "cpu, 1 thread, batch 1, head size 64, forward, on Intel(R) Xeon(R) @ 2.10GHz"
    assert f"Effects over 24 points ({config})" in start
    assert "length 72 to 1800; bidirectional and causal; float32 and bfloat16; 4 to 32 heads; full rows, " in start
    assert "Interactions are not estimated" in start
    for change in ("32 heads instead of 4", "bfloat16 instead of float32"):
        assert re.search(rf"{change}: the speedup of linear over full becomes 0\.(4[89]|5)", text)
    assert "Length 1800 instead of 72: the speedup of linear over full becomes 2" in start


def test_effects_within_chance_are_not_reported(tmp_path: Path) -> None:
    text, _ = _write(tmp_path, records())
    assert "Causal instead of bidirectional:" not in text
    assert "| Causal instead of bidirectional |" in text  # but the table lists it
    assert "Rows half full instead of full rows: linear" not in text
    assert "About one interval in twenty excludes 1 by chance." in text


def test_the_table_of_times_shows_the_effect_of_packing(tmp_path: Path) -> None:
    text, _ = _write(tmp_path, records())
    times = text.partition("Factor by which the time of a call changes")[2].partition("**")[2]
    (line,) = [
        line for line in times.splitlines() if line.startswith("| Packed rows of drawn lengths instead of padded")
    ]
    assert line.count("| 0.4") + line.count("| 0.39") == 2  # full and linear alike: packed, both compute less


def test_measured_points_are_listed_only_with_the_effects(tmp_path: Path) -> None:
    text, _ = _write(tmp_path, [*records(), *runs.speed(lengths=(512, 1024))])
    points = text.partition("**Measured points**")[2].partition("\n\n")[2].partition("\n\n")[0].splitlines()
    assert len(points) == 24 + 2  # and the head
    assert "bidirectional | bfloat16 |" in "".join(points)
    assert text.index("## Speed and memory") < text.index("## Effects: points")
    others, _, after = text.partition("## Effects: points")
    others = others.partition("## What to use")[2] + after.partition("## All lengths")[2].partition("## How to read")[0]
    assert "bfloat16" not in others
    assert "512" in others


def test_no_effects_without_a_design(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.everything(), runs.about())
    text = write_report([run], tmp_path / "out").markdown.read_text()
    assert "Effects" not in text


def test_rows_with_unidentifiable_effects_are_shown_as_speed(tmp_path: Path) -> None:
    rows = [record for record in records() if record.row.heads == 4 and record.row.seq_len == 72]
    text, _ = _write(tmp_path, rows)
    assert "## Effects" not in text
    assert "## Speed and memory" in text


def test_effects_are_estimated_per_machine(tmp_path: Path) -> None:
    other = list(records(machine="Zen-x2"))
    for record in other:
        record.row.case_key += "/b"
    text, _ = _write(tmp_path, [*records(), *other])
    assert text.count("**Measured points**") == 2
    assert text.count("Effects over 24 points") == 2


def test_the_plot_has_a_point_and_interval_per_change(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", records(), runs.about(sections=[_section().as_json()]))
    (plot,) = page.make_content(gather.gather([run])).plots
    panel = plot.panel
    (line,) = panel.lines
    assert line.label == "linear"
    assert len(line.x) == len(panel.ticks) == 1 + 1 + 1 + 1 + 3 + 1
    assert line.low is not None
    assert line.high is not None
    assert all(low < y < high for low, y, high in zip(line.low, line.y, line.high, strict=True))
    assert (panel.level, panel.mark_type) == (1.0, "points")
    assert all(f"{mark}: " in panel.caption for mark in panel.ticks.values())
    assert len(set(panel.ticks.values())) == len(panel.ticks)
    for mark in panel.ticks.values():
        assert f">{mark}<" in plot.svg  # no label is omitted for lack of space


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["suite", "part"])
def test_rows_of_other_suites_or_parts_have_no_effects(name: str, tmp_path: Path) -> None:
    text, _ = _write(tmp_path, records(**{name: "other"}))
    assert "## Effects" not in text
