"""The verb `new`: files to start from, which pass the checks and run as they are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shell import Command

from efficient_attn.cli.new import KINDS

MECHANISMS = KINDS[:-1]
MOST_LINES = 40


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_new_mechanism_passes_and_is_planned(kind: str, command: Command, tmp_path: Path) -> None:
    done = command("new", "my_attn.py", "--kind", kind)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "written: my_attn.py\nnext:\n  efficient-attn check my_attn.py\n"
        "  efficient-attn run quickstart --plugin my_attn.py --variant full,my_attn\n"
    )
    assert len((tmp_path / "my_attn.py").read_text().splitlines()) <= MOST_LINES
    checked = command("check", "my_attn.py")
    assert checked.code == 0, checked.out + checked.err
    assert re.match(r"my_attn: \d+ passed, \d+ do not apply", checked.out)
    planned = command("plan", "quickstart", "--plugin", "my_attn.py", "--variant", "full,my_attn", "--json")
    assert {case["variant"] for case in json.loads(planned.out)} == {"full", "my_attn"}


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_a_new_task_is_planned_and_runs(command: Command, tmp_path: Path) -> None:
    done = command("new", "my_task.py", "--kind", "task", "--json")
    assert done.code == 0, done.err
    written = json.loads(done.out)
    assert written["files"] == ["my_task.py", "my_task.toml"]
    assert sum(len((tmp_path / file).read_text().splitlines()) for file in written["files"]) <= MOST_LINES
    plan, run = (line.split()[1:] for line in written["next"])
    assert json.loads(command(*plan, "--json").out)[0]["task"] == "my_task"
    ran = command(*run, "--seq-len", "16", "--out", "out", "--json")
    assert json.loads(ran.out)["statuses"] == {"ok": 2}, ran.err
    page = (tmp_path / "out" / "report.html").read_text()
    assert "MyTask" in page


@pytest.mark.parametrize("kind", KINDS)
def test_templates_are_tidy(kind: str, command: Command, tmp_path: Path) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    assert command("new", "my_attn.py", "--kind", kind).code == 0
    for arguments in (("check", "--select", "E,F,I,B,UP,RUF"), ("format", "--check")):
        line = (ruff, *arguments, "--isolated", "--line-length", "120", "my_attn.py")
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout


def test_the_name_comes_from_the_file_or_the_option(command: Command, tmp_path: Path) -> None:
    assert json.loads(command("new", "my-first.py", "--json").out)["name"] == "my_first"
    done = command("new", "Zwei Worte.py", "--name", "my_2nd")
    assert "efficient-attn check 'Zwei Worte.py'" in done.out
    text = (tmp_path / "Zwei Worte.py").read_text()
    assert '@ea.register("my_2nd", family="sparse")\nclass My2Nd(' in text


def test_a_hostile_file_name_is_quoted_in_the_suite(command: Command, tmp_path: Path) -> None:
    file = 'a "$name" \u00e9.py'
    assert command("new", file, "--kind", "task", "--name", "mine").code == 0
    assert (tmp_path / file).is_file()
    planned = command("plan", 'a "$name" \u00e9.toml', "--json")
    assert planned.code == 0, planned.err
    assert {case["task"] for case in json.loads(planned.out)} == {"mine"}


REFUSED = {
    "backend": ("mine.py --kind backend", "plug-ins cannot register backends yet"),
    "misspelled kind": ("mine.py --kind modul", "did you mean 'module'?"),
    "another suffix": ("mine.txt", "does not end in .py"),
    "a folder": (".", "does not end in .py"),
    "a module's name": ("torch.py", "would hide the module torch"),
    "a standard module's name": ("random.py", "would hide the module random"),
    "a built-in name": ("linear.py", "the name 'linear' is already used"),
    "a built-in name as option": ("mine.py --name full", "the name 'full' is already used"),
    "a task's name": ("speed.py --kind task", "the name 'speed' is already used"),
    "a word of a task": ("mine.py --kind task --name decode", "the name 'decode' is already used"),
    "a keyword": ("class.py", "'class' is no name"),
    "a digit": ("mine.py --name 2fast", "'2fast' is no name"),
    "a spec": ("mine.py --name full:a=1", "'full:a=1' is no name"),
    "an empty name": ("mine.py --name=", "'' is no name"),
    "letters of other scripts": ("\u00e9.py", "is no name"),
    "a folder that does not exist": ("gone/mine.py", "cannot be written: No such file or directory"),
    "a file that exists": ("there.py", "there.py exists"),
    "a link to nothing": ("link.py", "link.py exists"),
    "a suite that exists": ("suite.py --kind task", "suite.toml exists"),
}


@pytest.mark.parametrize(("line", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_requests_get_one_line_and_write_nothing(
    line: str, message: str, command: Command, tmp_path: Path
) -> None:
    for file in ("there.py", "suite.toml"):
        (tmp_path / file).write_text("mine")
    (tmp_path / "link.py").symlink_to("gone.py")
    before = sorted(tmp_path.iterdir())
    done = command("new", *line.split(" "))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("efficient-attn")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert sorted(tmp_path.iterdir()) == before
    assert {(tmp_path / file).read_text() for file in ("there.py", "suite.toml")} == {"mine"}
