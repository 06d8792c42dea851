"""Runs gathered into one data frame: the baselines of their variants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import report_runs as runs

from efficient_attn.report.write import write_report
from efficient_attn.results.rows import Record


def report(tmp_path: Path, records: list[Record], **about: object) -> str:
    run = runs.write_run(tmp_path / "run", records, runs.about(**about))
    return write_report([run], tmp_path / "out").markdown.read_text()


@pytest.mark.parametrize("suite_baseline", [None, "full"])
def test_parts_with_different_baselines_are_reported_separately(tmp_path: Path, suite_baseline: str | None) -> None:
    """In each part, the variant that was paired with itself is the baseline, whatever the suite's is."""
    records = []
    for part, base in (("one", "full"), ("two", "linear")):
        for record in runs.speed(lengths=(512, 8192)):
            row = replace(record.row, part=part, case_key=f"peers/{part}/{record.row.case_key}")
            paired = {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0} if row.variant == base else {}
            records.append(Record(replace(row, **paired)))
    text = report(tmp_path, records, suite=runs.about()["suite"] | {"baseline": suite_baseline})
    for base in ("full", "linear"):
        assert f"· against {base}" in text
        assert f"Speedup over {base} |" in text
        assert f"faster than {base}" in text
    assert "the baseline;" not in text
    assert text.count("| baseline |") >= 2


def test_baselines_stored_in_rows_are_kept(tmp_path: Path) -> None:
    """They override the suite's baseline and the variant that was paired with itself."""
    records = [Record(replace(record.row, baseline="linear")) for record in runs.speed(lengths=(512, 8192))]
    text = report(tmp_path, records)
    assert "Speedup over linear |" in text
    assert "faster than linear" in text
    lines = (tmp_path / "out" / "rows.csv").read_text().splitlines()
    baselines = [dict(zip(lines[0].split(","), line.split(","), strict=False))["baseline"] for line in lines[1:]]
    assert set(baselines) == {"linear"}


def test_missing_baselines_are_completed_in_the_csv(tmp_path: Path) -> None:
    """With the suite's baseline in parts that run it; other parts have none."""
    records = list(runs.speed(lengths=(512, 8192)))
    growth = [
        Record(replace(r.row, part="growth", case_key=f"x/growth/{r.row.case_key}"))
        for r in records
        if r.row.variant != "full"
    ]
    report(tmp_path, [*records, *growth])
    rows = pd.read_csv(tmp_path / "out" / "rows.csv")
    assert set(rows[rows["part"].isna()]["baseline"]) == {"full"}
    assert rows[rows["part"] == "growth"]["baseline"].isna().all()


def test_surrogates_and_control_characters_are_removed(tmp_path: Path) -> None:
    """Names and commands come from file systems, titles from suites; both may contain lone surrogates."""
    half = "half\udcff\x1b of it"
    session = {"command": ["efficient-attn", "run", half], "suite": {"title": half}}
    failed = Record(runs.row("full", status="error", reason=half))
    run = runs.write_run(tmp_path / "half\udcff of it", [failed], runs.about(**session))
    written = write_report([run], tmp_path / "out")
    for page in (written.page, written.markdown):
        assert page.read_text().count("half of it") >= 4
