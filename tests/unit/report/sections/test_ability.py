"""The ability section: scores next to baselines, and attempts."""

from __future__ import annotations

from pathlib import Path

import report_runs as runs
from learned_runs import attempt, block, chapters, seeds, skipped, unable

from efficient_attn.report.write import write_report
from efficient_attn.tasks.problems.problem_table import COPYING

EVIL = "<script>alert('x')</script> | `b` [c](d)"


def test_fewer_bits_are_better(tmp_path: Path) -> None:
    columns = {
        "metric": "bits a token",
        "train_low": None,
        "train_high": None,
        "train_chance": 8.0,
        "train_majority": 4.5,
    }
    columns |= {"train_shortcut": 3.25, "train_way": "2 bytes of context"}
    worse = {0.001: 0.5, 0.002: 0.0, 0.004: 0.5}
    full, linear = (
        [attempt(name, best + more, rate=rate, **columns) for rate, more in worse.items()]
        for name, best in (("full", 2.5), ("linear", 3.5))
    )
    ability = block(tmp_path, *full, *linear, attempt("mqa", 4.6, **columns))
    table, training = ability.tables[:2]
    shown = {row[0].text: row[1].text for row in table.rows}
    assert list(shown) == ["chance", "majority", "shortcut", "full", "linear", "mqa"]
    assert shown["full"] == "2.50 (1 seed)"
    assert shown["mqa"] == "at chance, too early to say"  # worse than the majority's 4.5
    assert (shown["chance"], shown["majority"], shown["shortcut"]) == ("8.00", "4.50", "3.25")
    assert table.head == ("Variant", "recall, length 64, bits a token")
    assert training.rows[0][2].text == "2 bytes of context"
    assert ability.plots[0].panel.level is None


def test_all_attempts_are_in_a_folded_table(tmp_path: Path) -> None:
    *_, table = block(tmp_path, *seeds("full", (0.9, 0.8)), *unable("mqa")).tables
    assert table.folded
    assert table.caption == "All 9 attempts"
    rows = [[row[0].text, row[2].text, row[4].text, row[6].text, row[7].text] for row in table.rows]
    assert ["full", "grid", "0.001", "45.0%", "45.0%"] in rows
    assert ["full", "best", "0.002", "80.0%", "80.0%"] in rows
    assert ["mqa", "above", "0.008", "11.0%", "11.0%"] in rows
    assert [cell.text for cell in table.rows[0][3:]] == [
        "levelled off", "0.001", "0", "45.0%", "45.0%", "100", "2.00 s", "1,000", "1,500", "500",
    ]  # fmt: skip


def test_scores_state_their_configuration(tmp_path: Path) -> None:
    ability = block(tmp_path, *seeds("full", (0.9, 0.8)), attempt("linear", 0.9, parameters=3100))
    training = {name: cell.text for name, cell in zip(ability.tables[1].head, ability.tables[1].rows[0], strict=True)}
    assert training == {
        "Task": "recall, length 64", "Scored by": "accuracy", "Shortcut": "\u2013",
        "Learning rates tried": "0.001, 0.002, 0.004", "Parameters": "3,000 to 3,100", "Steps at most": "100",
        "Examples a step": "32", "Examples of the test": "512", "Seeds": "1 to 2",
    }  # fmt: skip
    assert "4 heads of size 16" in ability.config_text
    assert "batch" not in ability.config_text  # a column of calls, not of training
    assert all(plot.panel.config_text == ability.config_text for plot in ability.plots)


def test_other_sections_ignore_trained_rows(tmp_path: Path) -> None:
    sections = chapters(tmp_path, [*runs.speed(lengths=(512,)), *seeds("full", (0.9,))])
    assert set(sections) == {"What to use", "Speed and memory", "Ability"}
    assert "a different experiment" in sections["Ability"].intro
    assert "linear" in [row[0].text for row in sections["What to use"].blocks[0].tables[0].rows]


def test_no_section_without_trained_models(tmp_path: Path) -> None:
    untrained = skipped("full", "grid", "digits come with scikit-learn")
    assert "Ability" not in chapters(tmp_path, [untrained, *runs.speed(lengths=(512,))])


def test_names_are_escaped(tmp_path: Path) -> None:
    columns = {"task": EVIL, "part": EVIL, "train_way": EVIL, "train_shortcut": 0.3, "train_at_128": 0.5}
    columns |= {"stop_reason": EVIL, "train_attempt": EVIL, "train_caveat": EVIL, f"train_shortcut_{EVIL}": 0.2}
    columns["train_shortcut"] = 0.95
    about = runs.about() | {"sections": [section.as_json() for section in COPYING.sections]}
    run = runs.write_run(tmp_path / "run", [attempt("full", 0.9, **columns)], about)
    written = write_report([run], tmp_path / "out")
    assert "<script>alert" not in written.page.read_text()
    assert "<script>alert" not in written.markdown.read_text()
    assert "&lt;script&gt;alert" in written.page.read_text()


def test_the_report_has_attempts_and_plots(tmp_path: Path) -> None:
    about = runs.about() | {"sections": [section.as_json() for section in COPYING.sections]}
    run = runs.write_run(tmp_path / "run", [*seeds("full", (0.9,)), *unable("mqa")], about)
    written = write_report([run], tmp_path / "out")
    assert written.page.read_text().count("<summary>All 8 attempts</summary>") == 1
    assert "<details><summary>All 8 attempts</summary>\n\n" in written.markdown.read_text()
    drawn = {path.stem for path in (tmp_path / "out/plots").iterdir()}
    assert drawn == {f"{kind}-recall-length-64" for kind in ("learning", "rates", "worth")}
