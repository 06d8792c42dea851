"""What training took: steps to most of the score, and the sizes that the numbers hold for."""

from __future__ import annotations

from pathlib import Path

import report_runs as runs
from learned_runs import block, seeds, unable

from efficient_attn import units
from efficient_attn.report import gather, page
from efficient_attn.report.published import update_published


def test_mechanisms_at_chance_have_no_steps_to_most_of_their_score(tmp_path: Path) -> None:
    """90% of the noise of a model that learned nothing is no time of learning."""
    made = block(tmp_path, *seeds("full", (0.9, 0.9, 0.9)), *unable("mqa"))
    (table,) = (table for table in made.tables if table.caption == "Cost of training")
    columns = [table.head.index(name) for name in ("Steps", "Steps to 90%", "Time to 90%")]
    by_name = {row[0].text: [row[column].text for column in columns] for row in table.rows}
    assert by_name == {"full": ["100", "50", "1.00 s"], "mqa": ["100", units.EMPTY, units.EMPTY]}


def test_the_batch_of_trained_models_is_that_of_a_step(tmp_path: Path) -> None:
    records = [*seeds("full", (0.9, 0.9, 0.9)), *unable("mqa")]
    run = runs.write_run(tmp_path / "published/run", records, runs.about())
    assert "hold for float32, batch 32, " in page.make_content(gather.gather([run])).summary
    update_published(tmp_path / "published")
    lines = (tmp_path / "published/README.md").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("| [run"))
    assert [cell.strip() for cell in line.split("|")][5:7] == ["float32", "32"]


def test_plots_of_several_tasks_fill_lines(tmp_path: Path) -> None:
    """Kinds alternate from task to task, so that no kind starts a line of its own."""
    two = [*seeds("full", (0.9, 0.9)), *seeds("full", (0.8, 0.8), task="copying")]
    made = block(tmp_path, *two)
    assert len(made.plots) > len({plot.panel.kind for plot in made.plots})
    assert not made.aligned


def test_trainings_at_the_same_time_are_named(tmp_path: Path) -> None:
    for jobs, named in ((1, False), (3, True)):
        records = [*seeds("full", (0.9, 0.9, 0.9)), *unable("mqa")]
        for record in records:
            record.row.extra["train.jobs"] = jobs
        (table,) = (t for t in block(tmp_path / str(jobs), *records).tables if t.caption == "Cost of training")
        assert ("Up to 3 models were trained at the same time" in table.note) == named
