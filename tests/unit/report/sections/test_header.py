"""The header of a report: the configuration, overrides of the suite, and a noisy machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report import gather, page
from efficient_attn.report.sections.header import compute_disturbed_share, describe_noise, summarise_rows
from efficient_attn.results.frames import make_frame


def content(*folders: Path) -> page.Content:
    return page.make_content(gather.gather(folders))


def write(folder: Path, **about: Any) -> Path:
    return runs.write_run(folder, runs.speed(lengths=(512, 1024)), runs.about(**about))


def test_overrides_are_named_on_pages_and_plots(tmp_path: Path) -> None:
    shown = content(write(tmp_path / "mine", trial=["--quick"]))
    notice = "Not a result of the suite as written: mine ran with --quick."
    for text in (page.as_html(shown), page.as_markdown(shown)):
        assert notice in text
        assert text.index(notice) < text.index("8 cases of 4 variants")
    config = "(with overrides, cpu, float32, 1 thread, batch 1, 4 heads of size 64, "
    assert all(config in text for text in shown.findings)
    assert all("with overrides, cpu" in plot.svg for plot in shown.plots)


def test_a_suite_as_written_has_no_overrides(tmp_path: Path) -> None:
    shown = content(write(tmp_path / "mine", trial=[]))
    assert "with overrides" not in page.as_html(shown) + page.as_markdown(shown)


def test_only_runs_with_overrides_are_named(tmp_path: Path) -> None:
    full = write(tmp_path / "full")
    quick = runs.write_run(
        tmp_path / "quick",
        runs.speed(lengths=(512, 1024), threads=2, run_id="q"),
        runs.about(run_id="q", trial=["--quick", "--threads 2"]),
    )
    shown = content(full, quick)
    assert shown.override_notice.endswith(": quick ran with --quick --threads 2.")
    assert [text.count("with overrides") for text in shown.findings] == [0, 1]


@pytest.mark.parametrize(("protocol", "marked"), [(2, True), (3, True), (4, False), (5, False), (None, False)])
def test_rows_of_older_protocols_are_marked_on_pages_and_plots(
    protocol: int | None, marked: bool, tmp_path: Path
) -> None:
    shown = content(write(tmp_path / "mine", protocol=protocol, command=[]))
    note = f"protocol {protocol}, older code"
    for text in (page.as_html(shown), page.as_markdown(shown)):
        assert (f"Not comparable with present results: mine ({note})." in text) is marked
    assert all((f"({note}, cpu, float32" in text) is marked for text in shown.findings)
    assert all((f"{note}, cpu" in plot.svg) is marked for plot in shown.plots)


def test_only_the_older_of_two_runs_is_marked(tmp_path: Path) -> None:
    present = write(tmp_path / "present", protocol=5, command=[])
    older = runs.write_run(
        tmp_path / "older",
        runs.speed(lengths=(512, 1024), threads=2, run_id="q"),
        runs.about(run_id="q", trial=["--quick"], protocol=3),
    )
    shown = content(present, older)
    assert shown.override_notice.endswith("results: older (protocol 3, older code).")
    assert [text.count("(with overrides, protocol 3, older code, cpu") for text in shown.findings] == [0, 1]


def test_the_summary_states_the_configuration(tmp_path: Path) -> None:
    shown = content(write(tmp_path / "mine"))
    machine = "machine Xeon-x2-15GiB (Intel(R) Xeon(R) @ 2.10GHz)"
    assert f" The numbers hold for float32, batch 1, 4 heads, {machine}." in shown.summary
    wide = content(
        runs.write_run(
            tmp_path / "wide", [*runs.speed(lengths=(512,)), *runs.decode((1024,), batch=16, dtype="bfloat16")]
        )
    )
    assert "hold for float32 and bfloat16, batch 1 and 16, 4 and 8 heads, " in wide.summary


# -- a noisy machine ---------------------------------------------------------------------------------------------

STARTED = {"readiness": {"warning": "other programs used 1.3 cores, load 2.10"}}


def _rows(contaminated: int, **columns: Any) -> Any:
    row = runs.row("full", mode="forward", seq_len=64, rounds=10, contaminated=contaminated, **columns)
    return make_frame([row, replace(row, case_key="lost", status="timeout", contaminated=10)])


def test_rounds_of_failed_cases_are_not_counted() -> None:
    assert compute_disturbed_share(_rows(1)) == pytest.approx(0.1)
    assert compute_disturbed_share(_rows(1).assign(rounds=None)) is None
    assert compute_disturbed_share(make_frame([])) is None


@pytest.mark.parametrize(
    ("contaminated", "sessions", "start"),
    [
        (0, [], ""),
        (2, [{}, {"readiness": None}, {"readiness": {"warning": None}}], ""),
        (6, [], "Measured on a noisy machine (other processes disturbed 60% of the rounds). Small differences"),
        (0, [STARTED, STARTED], "Measured on a noisy machine (at the start: other programs used 1.3 cores, load 2.10)"),
        (6, [STARTED], "Measured on a noisy machine (other processes disturbed 60% of the rounds; at the start: other"),
    ],
)
def test_noise_is_reported_as_a_warning(contaminated: int, sessions: list[dict[str, Any]], start: str) -> None:
    warning = describe_noise(_rows(contaminated), sessions)
    assert warning.startswith(start)
    assert bool(warning) == bool(start)


def test_few_disturbed_rounds_are_mentioned_in_the_summary() -> None:
    assert "Other processes disturbed 10% of the rounds; the intervals include that." in summarise_rows(_rows(1), {})
    assert "disturbed" not in summarise_rows(_rows(0), {})
