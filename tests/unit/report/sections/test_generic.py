"""Sections that tasks store as data: rendered without the task or its module."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
import report_runs as runs

import efficient_attn as ea
from efficient_attn.report import gather, page
from efficient_attn.report.write import ReportPaths, write_report
from efficient_attn.results.rows import Record
from efficient_attn.results.section import Column, DamagedSection, Section

Cells = list[list[str]]
BUILT_IN = ["What to use", "Relative error against time, memory and state", "Speed and memory", "Decoding", "Fidelity"]


def write(tmp_path: Path, records: Iterable[Record], *sections: Any, **about: Any) -> ReportPaths:
    data = [section.as_json() if isinstance(section, Section) else section for section in sections]
    run = runs.write_run(tmp_path / "run", records, runs.about(sections=data, **about))
    return write_report([run], tmp_path / "out")


def titles(written: ReportPaths) -> list[str]:
    return re.findall("^## (.*)$", written.markdown.read_text(), re.MULTILINE)


def table(written: ReportPaths, caption: str) -> Cells:
    """The head and the rows of a table in Markdown."""
    head, _, *rows = (
        written.markdown.read_text().partition(f"**{caption}**")[2].strip().partition("\n\n")[0].splitlines()
    )
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in (head, *rows)]


def panel(tmp_path: Path, records: Iterable[Record], section: Section) -> Any:
    """The first panel that the section's rows give."""
    run = runs.write_run(tmp_path / "run", records, runs.about(sections=[section.as_json()]))
    return next(iter(page.make_content(gather.gather([run])).plots)).panel


def test_a_section_is_rendered_from_data_alone(tmp_path: Path) -> None:
    written = write(tmp_path, [*runs.speed(lengths=(512, 1024)), *runs.sort()], runs.SORT)
    assert titles(written)[:3] == ["What to use", "Speed and memory", "Sorting"]
    html, text = written.page.read_text(), written.markdown.read_text()
    assert f'<section id="section-sorting" data-task="{runs.SORT.task}">' in html
    assert '<a href="#section-sorting">Sorting</a>' in html
    for shown in (html, text):
        assert "Seconds that a sort takes. The median of its rounds." in shown
        assert "Sorting. Time over length." in shown
    assert table(written, "Sorting") == [
        ["Variant", "Length", "Time", "Rounds"],
        ["full", "1,024", "20.5 \u00b5s", "8"],
        ["linear", "1,024", "10.2 \u00b5s", "8"],
        ["full", "4,096", "81.9 \u00b5s", "8"],
        ["linear", "4,096", "41.0 \u00b5s", "8"],
        ["full", "65,536", "1.31 ms", "8"],
        ["linear", "65,536", "655 \u00b5s", "8"],
    ]
    assert "plots/section-sorting.png" in text
    svg = next(path for path in written.plots if path.name == "section-sorting.svg").read_text()
    ElementTree.fromstring(svg)
    assert all(
        f">{word}</text>" in svg.replace("<!--", "") or word in svg for word in ("full", "linear", "64K", "Time")
    )


def test_task_columns_are_in_the_csv_and_on_the_page(tmp_path: Path) -> None:
    written = write(tmp_path, runs.sort(order="up"), runs.SORT)
    read = pd.read_csv(written.csv)
    assert read["sort.order"].tolist() == ["up"] * 6
    assert read["sort.seconds"].tolist() == ea.load(tmp_path / "run")["sort.seconds"].tolist()
    for shown in (written.page.read_text(), written.markdown.read_text()):
        assert "sort.seconds" in shown
        assert "sort.order" in shown


def test_only_successful_rows_of_the_task_are_shown(tmp_path: Path) -> None:
    failed = Record(runs.row("mqa", task="sort", seq_len=64, status="error", reason="boom"))
    written = write(tmp_path, [*runs.fidelity(), *runs.sort((512,)), failed], runs.SORT)
    assert [row[0] for row in table(written, "Sorting")] == ["Variant", "full", "linear"]
    assert "boom" in written.markdown.read_text().partition("## What did not run")[2]


def test_no_section_without_rows(tmp_path: Path) -> None:
    written = write(tmp_path, runs.everything(), runs.SORT)
    assert titles(written)[:6] == [*BUILT_IN, "What did not run"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", ["line", "points", "bars"])
@pytest.mark.parametrize("unit", ["time", "seconds", "bytes", "ratio", "share", "error", "count", "number"])
def test_every_kind_and_unit_can_be_drawn(kind: Any, unit: Any, tmp_path: Path) -> None:
    column = Column(name="sort.value", heading="Value", unit=unit)
    section = replace(runs.SORT, columns=(column,), y="sort.value", kind=kind)
    written = write(tmp_path, runs.sort(value=0.5), section)
    assert len(written.plots) == 2
    ElementTree.fromstring(written.plots[1].read_text())


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", ["line", "points", "bars"])
@pytest.mark.parametrize("lengths", [(512,), (512, 513), (1, 2)])
@pytest.mark.parametrize("value", [0, -1.5, 3, True])
def test_few_and_odd_values_can_be_drawn(kind: Any, lengths: tuple[int, ...], value: Any, tmp_path: Path) -> None:
    section = replace(runs.SORT, columns=(), y="sort.value", kind=kind)
    written = write(tmp_path, runs.sort(lengths, value=value), section)
    assert len(written.plots) == 2
    assert "nan" not in written.plots[1].read_text()


@pytest.mark.parametrize("changes", [{"y": None}, {"y": "sort.gone"}, {"x": None, "y": None}, {"y": "sort.word"}])
def test_a_section_without_y_values_has_a_table_but_no_plot(changes: dict[str, Any], tmp_path: Path) -> None:
    written = write(tmp_path, runs.sort(word="up"), replace(runs.SORT, **changes))
    assert len(table(written, "Sorting")) == 7
    assert written.plots == ()


@pytest.mark.parametrize("x", [None, "sort.gone", "sort.empty"])
def test_a_section_without_x_values_lists_variants(x: str | None, tmp_path: Path) -> None:
    section = replace(runs.SORT, x=x, kind="bars")
    written = write(tmp_path, runs.sort((512,), empty=None), section)
    assert [row[0] for row in table(written, "Sorting")] == ["Variant", "full", "linear"]
    assert len(written.plots) == (0 if x == "sort.empty" else 2)


def test_missing_columns_are_omitted_and_empty_cells_dashed(tmp_path: Path) -> None:
    records = [*runs.sort((512, 1024))]
    records[0].row.extra["seconds"] = None
    missing = Column(name="other.thing", heading="Thing")
    written = write(tmp_path, records, replace(runs.SORT, columns=(*runs.SORT.columns, missing)))
    head, *rows = table(written, "Sorting")
    assert head == ["Variant", "Length", "Time", "Rounds"]
    assert [row[2] for row in rows].count("\u2013") == 1


def test_text_columns_split_lines(tmp_path: Path) -> None:
    section = replace(runs.SORT, columns=(*runs.SORT.columns, Column(name="sort.order", heading="order")))
    plot = panel(tmp_path, [*runs.sort(order="up"), *runs.sort(order="down")], section)
    assert sorted(line.label for line in plot.lines) == [
        "full (order: down)", "full (order: up)", "linear (order: down)", "linear (order: up)",
    ]  # fmt: skip
    assert {tuple(line.x) for line in plot.lines} == {(1024, 4096, 65536)}
    assert len({line.line_style for line in plot.lines}) == 4


def test_text_on_the_x_axis_has_a_tick_per_value(tmp_path: Path) -> None:
    records = [record for order in ("up", "down") for record in runs.sort((512,), order=order)]
    plot = panel(tmp_path, records, replace(runs.SORT, x="sort.order"))
    assert (plot.ticks, plot.log_x, plot.xlabel) == ({0.0: "down", 1.0: "up"}, False, "order")


def test_axes_are_logarithmic_if_values_grow_by_factors(tmp_path: Path) -> None:
    plot = panel(tmp_path / "a", runs.sort(), runs.SORT)
    assert (plot.log_x, plot.log_y, plot.unit) == (True, True, "seconds")
    share = replace(runs.SORT, columns=(Column(name="sort.share", heading="Share", unit="share"),), y="sort.share")
    plot = panel(tmp_path / "b", runs.sort((512, 768), share=0.5), share)
    assert (plot.log_x, plot.log_y) == (False, False)
    plot = panel(tmp_path / "c", runs.sort(), replace(runs.SORT, kind="bars"))
    assert (plot.log_x, plot.log_y, plot.ticks[2.0]) == (False, False, "64K")


def test_many_variants_are_split_over_several_plots(tmp_path: Path) -> None:
    names = [f"linear:n={i}" for i in range(20)]
    (record, *_) = runs.sort((512,))
    records = [Record(replace(record.row, variant=name, case_key=name)) for name in names]
    written = write(tmp_path, records, runs.SORT)
    assert [path.name for path in written.plots if path.suffix == ".svg"] == [
        "section-sorting-1-of-2.svg", "section-sorting-2-of-2.svg",
    ]  # fmt: skip


def test_settings_and_directions_are_shown_separately(tmp_path: Path) -> None:
    two_threads = [Record(replace(r.row, threads=2, case_key=f"2/{r.row.case_key}")) for r in runs.sort()]
    causal = [Record(replace(r.row, causal=True, case_key=f"c/{r.row.case_key}")) for r in runs.sort()]
    written = write(tmp_path, [*runs.sort(), *causal, *two_threads], runs.SORT)
    text = written.markdown.read_text()
    assert text.count("\n### cpu \u00b7 float32") == 2
    assert all(text.count(f"**Sorting{direction}**") == 1 for direction in (": bidirectional", ": causal", ""))
    assert len({path.name for path in written.plots}) == len(written.plots) == 6


def test_a_section_with_a_built_in_name_replaces_it(tmp_path: Path) -> None:
    replacement = Section(name="speed", task="speed", title="How fast", layout="speed")
    sections = [runs.SORT.as_json(), replacement.as_json()]
    written = write(tmp_path, [*runs.everything(), *runs.sort()], *sections)
    assert titles(written)[2:6] == ["How fast", "Decoding", "Fidelity", "Sorting"]
    assert '<section id="speed" data-task="speed">' in written.page.read_text()


def test_unknown_layouts_fall_back_to_the_plain_one(tmp_path: Path) -> None:
    newer = runs.SORT.as_json() | {"layout": "hologram", "kind": "cloud", "depth": 3}
    newer["columns"] = [column | {"unit": "furlong", "colour": "red"} for column in newer["columns"]]
    written = write(tmp_path, runs.sort(), newer)
    assert table(written, "Sorting")[1] == ["full", "1,024", "2.05e-05", "8.00"]
    assert len(written.plots) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "damaged",
    [
        3,
        "text",
        {},
        {"name": "sorting", "task": "sort"},
        {"name": "no name", "task": "sort", "title": "T"},
        {"name": "../x", "task": "sort", "title": "T"},
        {"name": "sorting", "task": 4, "title": "T"},
        {"name": "sorting", "task": "sort", "title": "T", "sentences": "letters"},
        {"name": "sorting", "task": "sort", "title": "T", "columns": 3},
        {"name": "sorting", "task": "sort", "title": "T", "columns": ["a"]},
        {"name": "sorting", "task": "sort", "title": "T", "columns": [{"name": "a"}]},
        {"name": "sorting", "task": "sort", "title": "T", "x": ["seq_len"]},
    ],
)
def test_damaged_sections_are_skipped_with_a_warning(damaged: Any, tmp_path: Path) -> None:
    other = replace(runs.SORT, name="other", title="Other")
    with pytest.warns(DamagedSection, match=r"run\.json: not a section of a report: .*; left out"):
        written = write(tmp_path, runs.sort(), damaged, other)
    assert titles(written)[0] == "Other"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sections", [None, [], {}])
def test_runs_without_sections_get_the_built_in_ones(sections: Any, tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.everything(), runs.about(sections=sections))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DamagedSection)
        written = write_report([run], tmp_path / "out")
    assert titles(written)[:5] == BUILT_IN


def test_text_of_sections_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script> | `b` [c](d) $\\frac$\n# no title"
    columns = (Column(name="sort.seconds", heading=evil, unit="seconds"), Column(name="sort.order", heading=evil))
    section = replace(runs.SORT, title=evil, sentences=(evil,), columns=columns)
    written = write(tmp_path, [*runs.sort(order=evil), *runs.sort(order="up")], section)
    html, text = written.page.read_text(), written.markdown.read_text()
    assert "<script>alert" not in html
    assert "<script>" not in re.sub(r"(`{3,}).*?\1", "", text, flags=re.DOTALL)
    assert not re.search("^# no title", text, re.MULTILINE)


def test_sections_are_rendered_without_torch(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.sort(), runs.about(sections=[runs.SORT.as_json()]))
    code = (
        "import sys; from pathlib import Path; from efficient_attn.report.write import write_report\n"
        f"write_report([Path({str(run)!r})], Path({str(tmp_path / 'out')!r}))\n"
        "sys.exit(bool({'torch', 'efficient_attn.tasks', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_sections_round_trip_through_json_and_reject_bad_names() -> None:
    assert Section.from_json(runs.SORT.as_json()) == runs.SORT
    with pytest.raises(ValueError, match="lower case letters"):
        replace(runs.SORT, name="My sorting")
