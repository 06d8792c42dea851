"""Tables of speed and memory on pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_runs as runs

from efficient_attn.report.write import write_report

pytestmark = pytest.mark.slow


def test_workspace_is_shown_beside_peak_memory_and_reasons_in_the_note(tmp_path: Path) -> None:
    records = list(runs.speed(lengths=(512, 1024)))
    for record in records:
        record.row.workspace_bytes = (record.row.peak_memory_bytes or 0) // 4
        if record.row.variant == "linear":
            record.row.reason = "a new process grew by 67.9 MiB, its counted peak is 9.03 MiB"
            record.row.peak_memory_bytes, record.row.workspace_bytes = 9 * 2**20, 5 * 2**20
    text = write_report([runs.write_run(tmp_path / "run", records)], tmp_path / "out").markdown.read_text()
    table = text.partition("**Forward, bidirectional at length 1024**\n\n")[2]
    head, _, *lines = (line.strip("|").split("|") for line in table.partition("\n\n")[0].splitlines())
    cells = {line[0].strip(): dict(zip(map(str.strip, head), map(str.strip, line), strict=True)) for line in lines}
    assert (cells["linear"]["Peak memory"], cells["linear"]["Workspace"]) == ("9.00 MiB", "5.00 MiB")
    assert cells["full"]["Workspace"] != cells["full"]["Peak memory"]
    assert list(cells["full"]).index("Workspace") == list(cells["full"]).index("Peak memory") + 1
    assert text.count("linear: a new process grew by 67.9 MiB, its counted peak is 9.03 MiB.") == 1
    assert "Peak memory includes the output" in text


def test_runs_without_a_workspace_have_no_empty_column(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.speed(lengths=(512,)))
    text = write_report([run], tmp_path / "out").markdown.read_text()
    assert "Peak memory" in text
    assert "| Workspace" not in text
    assert "aunches" not in text  # which rows of a processor do not have


def test_launches_on_a_gpu_are_shown_and_explained(tmp_path: Path) -> None:
    records = list(runs.speed(lengths=(512,)))
    for record in records:
        if record.row.variant in ("full", "linear"):
            record.row.launches, record.row.launch_bound = 18_947, record.row.variant == "linear"
    text = write_report([runs.write_run(tmp_path / "run", records)], tmp_path / "out").markdown.read_text()
    lines = [line for line in text.splitlines() if "18,947" in line]
    assert ["18,947, launch-bound |" in line for line in lines] == [line.startswith("| linear") for line in lines]
    assert len(lines) == 2
    assert "'Launches' is the number of kernels" in text
