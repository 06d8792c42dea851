"""What stands at a report's start: what the numbers hold for, and whether they are a trial's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report import gather, page

QUICK = ["efficient-attn", "run", "quickstart", "--quick", "--out", "out"]


def content(*folders: Path) -> page.Content:
    return page.make_content(gather.gather(folders))


def write(folder: Path, **about: Any) -> Path:
    return runs.write_run(folder, runs.speed(lengths=(512, 1024)), runs.about(**about))


@pytest.mark.parametrize("about", [{"command": QUICK}, {"command": "pytest", "trial": ["--quick"]}])
def test_a_trial_says_so_on_the_page_in_markdown_in_words_and_pictures(about: dict[str, Any], tmp_path: Path) -> None:
    shown = content(write(tmp_path / "mine", **about))
    said = "A trial, not a result of the suite as it is written: mine ran with --quick."
    for text in (page.as_html(shown), page.as_markdown(shown)):
        assert said in text
        assert text.index(said) < text.index("8 cases of 4 variants")
    assert all("(trial, cpu, float32, 1 thread, batch 1, 4 heads of size 64, " in text for text in shown.sentences)
    assert all("trial, cpu" in plot.svg for plot in shown.plots)


def test_a_suite_as_it_is_written_is_no_trial(tmp_path: Path) -> None:
    shown = content(write(tmp_path / "mine", command=QUICK, trial=[]))
    assert "trial" not in page.as_html(shown) + page.as_markdown(shown)


def test_of_several_runs_the_trials_are_named(tmp_path: Path) -> None:
    full = write(tmp_path / "full")
    quick = runs.write_run(
        tmp_path / "quick",
        runs.speed(lengths=(512, 1024), threads=2, run_id="q"),
        runs.about(run_id="q", trial=["--quick", "--threads 2"]),
    )
    shown = content(full, quick)
    assert shown.trial.endswith(": quick ran with --quick --threads 2.")
    assert [text.count("trial") for text in shown.sentences] == [0, 1]


def test_the_summary_says_what_the_numbers_hold_for(tmp_path: Path) -> None:
    shown = content(write(tmp_path / "mine"))
    machine = "machine Xeon-x2-15GiB (Intel(R) Xeon(R) @ 2.10GHz)"
    assert f" The numbers hold for float32, batch 1, 4 heads, {machine}." in shown.summary
    wide = content(
        runs.write_run(
            tmp_path / "wide", [*runs.speed(lengths=(512,)), *runs.decode((1024,), batch=16, dtype="bfloat16")]
        )
    )
    assert "hold for float32 and bfloat16, batch 1 and 16, 4 and 8 heads, " in wide.summary
