"""Runs as one frame of rows: what their variants are compared with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import report_runs as runs

from efficient_attn.report import write_report
from efficient_attn.results.rows import Record


def report(tmp_path: Path, records: list[Record], **about: object) -> str:
    run = runs.write_run(tmp_path / "run", records, runs.about(**about))
    return write_report([run], tmp_path / "out").markdown.read_text()


@pytest.mark.parametrize("of_suite", [None, "full"])
def test_parts_with_baselines_of_their_own_stand_apart(tmp_path: Path, of_suite: str | None) -> None:
    """Others are compared in each part with the variant that was paired with itself, whatever the suite's baseline."""
    records = []
    for part, base in (("one", "full"), ("two", "linear")):
        for each in runs.speed(lengths=(512, 8192)):
            row = replace(each.row, part=part, case_key=f"peers/{part}/{each.row.case_key}")
            own = {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0} if row.variant == base else {}
            records.append(Record(replace(row, **own)))
    text = report(tmp_path, records, suite=runs.about()["suite"] | {"baseline": of_suite})
    for base in ("full", "linear"):
        assert f"· against {base}" in text
        assert f"Speedup over {base} |" in text
        assert f"faster than {base}" in text
    assert "the baseline;" not in text
    assert text.count("| baseline |") >= 2


def test_rows_that_say_their_baseline_keep_it(tmp_path: Path) -> None:
    """Whatever the suite says, and whatever was paired with itself."""
    said = [Record(replace(each.row, baseline="linear")) for each in runs.speed(lengths=(512, 8192))]
    text = report(tmp_path, said)
    assert "Speedup over linear |" in text
    assert "faster than linear" in text
    written = (tmp_path / "out" / "rows.csv").read_text().splitlines()
    named = [dict(zip(written[0].split(","), line.split(","), strict=False))["baseline"] for line in written[1:]]
    assert set(named) == {"linear"}


def test_a_baseline_that_was_not_said_is_in_the_csv_where_the_run_knows_it(tmp_path: Path) -> None:
    """The suite's in a part that runs it; a part that does not has none."""
    records = list(runs.speed(lengths=(512, 8192)))
    alone = [
        Record(replace(r.row, part="growth", case_key=f"x/growth/{r.row.case_key}"))
        for r in records
        if r.row.variant != "full"
    ]
    report(tmp_path, [*records, *alone])
    rows = pd.read_csv(tmp_path / "out" / "rows.csv")
    assert set(rows[rows["part"].isna()]["baseline"]) == {"full"}
    assert rows[rows["part"] == "growth"]["baseline"].isna().all()


def test_what_no_page_can_hold_is_left_out(tmp_path: Path) -> None:
    """Names and commands come from file systems, titles from suites: halves of characters and all."""
    half = "half\udcff\x1b of it"
    said = {"command": ["efficient-attn", "run", half], "suite": {"title": half}}
    lost = Record(runs.row("full", status="error", reason=half))
    run = runs.write_run(tmp_path / "half\udcff of it", [lost], runs.about(**said))
    written = write_report([run], tmp_path / "out")
    for page in (written.page, written.markdown):
        assert page.read_text().count("half of it") >= 4
