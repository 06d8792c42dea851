"""A task in a plug-in: from TOML to its section on the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shell import Done, run

import efficient_attn as ea

SORT = '''"""How long torch.sort takes, by how many values there are."""

import time

import torch

from efficient_attn.tasks import Column, Guess, Keys, CaseConfig, Record, Section, Task, register_task


class SortKeys(Keys):
    lengths: tuple[int, ...] = (1000, 8000)
    descending: bool = False


def plan(asked):
    for n in asked.keys.lengths:
        yield asked.make_group(CaseConfig(seq_len=n, max_len=n), descending=asked.keys.descending), None


def judge(case, row, at):
    values = torch.arange(float(case.group.config.seq_len)).flip(0)
    start = time.perf_counter()
    found, _ = torch.sort(values, descending=case.keys.descending)
    row.extra = {"seconds": time.perf_counter() - start, "first": found[0].item()}
    return Record(row)


SECTION = Section(
    name="sort",
    task="sort",
    title="Sorting <numbers>",
    sentences=("Sorting takes N log N.",),
    columns=(Column(name="sort.seconds", heading="Seconds to sort"),),
    x="seq_len",
    y="sort.seconds",
)
register_task(
    Task(
        name="sort",
        words=("sort",),
        keys=SortKeys,
        plan=plan,
        judge=judge,
        guess=lambda case, best: Guess(1e-8 * case.group.config.seq_len, 4 * case.group.config.seq_len, 0),
        mechanisms=False,
        columns={"seconds": "that sorting takes", "first": "the first value when sorted"},
        sections=(SECTION,),
    )
)
'''
SUITE = 'title = "Sorting"\nmeasure = ["sort"]\nplugins = ["sort.py"]\nlengths = [100, 4000, 16000]\n'
# as on a laptop that has neither torch nor the plug-in
DRAW = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from efficient_attn.report.write import write_report
write_report([Path("out")], Path("page"))
"""


@pytest.fixture(scope="module")
def task_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    folder = tmp_path_factory.mktemp("sorting")
    (folder / "sort.py").write_text(SORT)
    (folder / "sorting.toml").write_text(SUITE)
    done = run("run", "sorting.toml", "--out", "out", "--set", "descending=true", cwd=folder)
    return folder, done


def test_a_task_is_one_short_file() -> None:
    assert len(SORT.splitlines()) <= 50


def test_a_task_runs_from_toml_to_rows(task_run: tuple[Path, Done]) -> None:
    folder, done = task_run
    assert (done.code, done.err.count("Traceback")) == (0, 0), done.err
    rows = ea.load(folder / "out")
    assert list(rows["task"]) == ["sort"] * 3
    assert list(rows["seq_len"]) == [100, 4000, 16000]
    assert (rows["sort.seconds"] > 0).all()
    assert list(rows["sort.first"]) == [99, 3999, 15999]  # the key that was set reached the worker
    assert "extra" not in rows.columns


def test_its_section_is_drawn_without_the_plugin_and_torch(task_run: tuple[Path, Done]) -> None:
    folder, _ = task_run
    (folder / "sort.py").rename(folder / "gone.txt")
    try:
        drawn = subprocess.run([sys.executable, "-c", DRAW], cwd=folder, capture_output=True, text=True, check=False)
    finally:
        (folder / "gone.txt").rename(folder / "sort.py")
    assert drawn.returncode == 0, drawn.stderr
    page, markdown = (folder / "page" / "report.html").read_text(), (folder / "page" / "report.md").read_text()
    assert "Sorting &lt;numbers&gt;" in page
    assert "Sorting <numbers>" not in page
    assert "Sorting takes N log N." in page
    for text in (page, markdown):
        assert "Seconds to sort" in text
    assert list((folder / "page" / "plots").glob("*.svg"))


@pytest.mark.sampled(4)
def test_a_task_is_planned_and_resumed(task_run: tuple[Path, Done]) -> None:
    folder, _ = task_run
    planned = run("plan", "sorting.toml", "--set", "lengths=100,200", "--json", cwd=folder)
    assert [case["seq_len"] for case in json.loads(planned.out)] == [100, 200]
    before = (folder / "out" / "rows.jsonl").read_bytes()
    again = run("run", "sorting.toml", "--out", "out", "--resume", "--set", "descending=true", cwd=folder)
    assert (again.code, (folder / "out" / "rows.jsonl").read_bytes()) == (0, before)
    (folder / "sort.py").write_text(SORT + "# changed\n")
    stale = run("run", "sorting.toml", "--out", "out", "--resume", "--set", "descending=true", cwd=folder)
    assert "3 cases were measured from other sources or settings; measured again" in stale.err
    assert (folder / "out" / "rows.jsonl").read_bytes().startswith(before)
    (folder / "sort.py").write_text(SORT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--set", "lenghts=1,2"),
            "has no task with this key; did you mean 'lengths'?",
        ),
        (("--set", "lengths=many"), "lengths.0: Input should be a valid integer"),
        (("--set", "lengths"), "'lengths' is not KEY=VALUE"),
        (("--activations", "mine.npz"), "--activations: the suite sorting has no task with this key"),
    ],
)
def test_a_wrong_key_is_one_line(task_run: tuple[Path, Done], arguments: tuple[str, ...], message: str) -> None:
    done = run("plan", "sorting.toml", *arguments, cwd=task_run[0])
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
