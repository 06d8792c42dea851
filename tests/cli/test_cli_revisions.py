"""The composite action: its script, run as the action runs it, on a repository with two commits."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from processes import list_descendants, wait_until_gone
from shell import environment

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
ACTION = CHECKOUT / ".github/actions/compare"
MECHANISMS = """
import time
import efficient_attn as ea

class Mine(ea.SoftmaxAttention):
    def compute(self, q, k, v, mask, **inputs):
        {work}
        return super().compute(q, k, v, mask, **inputs)

@ea.register("my_exact", family="full")
class Exact(ea.SoftmaxAttention):
    "The same in both commits."

@ea.register("my_slower", family="full")
class Slower(Mine):
    "Slower in the second commit."

@ea.register("my_broken", family="full")
class Broken(ea.SoftmaxAttention):
    "Fails in the second commit."

    def compute(self, q, k, v, mask, **inputs):
        {failure}
        return super().compute(q, k, v, mask, **inputs)
"""
UNUSED = """
import efficient_attn as ea

@ea.register("my_unused", family="full")
class Unused(ea.SoftmaxAttention):
    "In no suite."
"""
HANGS = "import time\ntime.sleep(250)\n"
SUITE = """
title    = "Tiny"
measure  = ["forward"]
baseline = "my_exact"
rounds   = 4
max_rounds = 4
processes  = 4
axes     = {{ seq_len = {lengths}, threads = [1] }}
dims     = {{ heads = 2, head_dim = 8 }}
variant  = [{{ name = "my_exact" }}, {{ name = "my_slower" }}, {{ name = "my_broken" }}]
"""


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def _commit(folder: Path, *, work: str = "pass", failure: str = "pass", lengths: str = "[16]") -> None:
    (folder / "bench").mkdir(exist_ok=True)
    (folder / "bench/my_attn.py").write_text(MECHANISMS.format(work=work, failure=failure))
    (folder / "bench/unused.py").write_text(UNUSED)
    (folder / "bench/my.toml").write_text(SUITE.format(lengths=lengths))
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "Change mechanisms")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose second commit slows one mechanism down, breaks one, and adds a length."""
    folder = tmp_path / "repository"
    folder.mkdir()
    _git(folder, "init", "-q", "-b", "main")
    _commit(folder)
    _commit(folder, work="time.sleep(0.002)", failure="raise RuntimeError('planted')", lengths="[16, 32]")
    return folder


def _run_action(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The action's step, as GitHub runs it: its inputs and their defaults are environment variables of the script."""
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    (step,) = action["runs"]["steps"]
    values = {name: known["default"] for name, known in action["inputs"].items()} | inputs
    assert not values.keys() - action["inputs"].keys()
    variables = {name: text.replace("inputs.", "").strip("${ }") for name, text in step["env"].items()}
    variables = {name: values[key] for name, key in variables.items()}
    python = folder.parent / "bin"
    python.mkdir(exist_ok=True)
    if not (python / "python").exists():  # the interpreter of these tests
        (python / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (python / "python").chmod(0o755)
    paths = {"PATH": f"{python}{os.pathsep}{os.environ['PATH']}", "GITHUB_ACTION_PATH": str(ACTION)}
    paths |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(folder.parent / "summary.md")}
    command = [shutil.which("bash") or "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    everything = environment(**variables, **paths)
    return subprocess.run(command, cwd=folder, env=everything, capture_output=True, text=True, timeout=280, check=False)


PLUGIN = "--plugin my_attn.py"
NOISE = "--margin 90% --tolerance 90%"  # the sleep is many times the call


@pytest.mark.sampled(12)
def test_the_action_reports_what_changed_between_two_commits(repository: Path) -> None:
    (repository / "bench/my_attn.py").write_text("raise RuntimeError('uncommitted, and not measured')")
    plugins = f"{PLUGIN} --plugin unused.py"
    done = _run_action(repository / "bench", suite="my.toml", **{"run-options": plugins, "compare-options": NOISE})
    assert done.returncode == 1, done.stdout + done.stderr
    out = repository / "bench/benchmark"
    errors = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert len(errors) == 2
    assert "my_broken" in errors[0]
    assert "planted" in errors[0]
    assert "my_slower" in errors[1]
    assert "slower (" in errors[1]
    assert done.stderr.count("--plugin unused.py: no case uses my_unused") == 1
    assert "in 4 pairs of process runs" in " ".join(done.stdout.split())
    assert "::notice title=Not compared::" in done.stdout
    assert "my_slower" in (repository / "summary.md").read_text()
    suite = ElementTree.parse(out / "junit.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors")) == ("2", "0")
    revisions = [json.loads((out / name / "run.json").read_text())["sessions"][0] for name in ("base", "head")]
    commits = [session["repository"]["revision"] for session in revisions]
    assert commits == _git(repository, "rev-list", "--reverse", "HEAD").split()
    assert len(_git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.sampled(6)
def test_a_revision_that_cannot_be_measured_is_named(repository: Path) -> None:
    (repository / "bench/my_attn.py").write_text("raise RuntimeError('boom')")
    _git(repository, "commit", "-qam", "Break the plug-in")
    done = _run_action(repository / "bench", suite="my.toml", **{"run-options": PLUGIN})
    head = _git(repository, "rev-parse", "HEAD")[:12]
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"head ({head}) could not be measured: efficient-attn run exited with 2" in done.stderr
    assert "boom" in done.stderr
    assert f"::error title=Comparison of revisions::head ({head}) could not be measured" in done.stdout
    assert len(_git(repository, "worktree", "list").splitlines()) == 1


def test_when_one_revision_cannot_be_measured_the_other_ends(repository: Path) -> None:
    (repository / "bench/my_attn.py").write_text(HANGS)
    (repository / "bench/new.toml").write_text('plugins = ["my_attn.py"]')
    _git(repository, "add", "-A")
    _git(repository, "commit", "-qm", "Add a suite")
    start = time.monotonic()
    done = _run_action(repository / "bench", suite="new.toml")
    assert time.monotonic() - start < 200
    assert done.returncode == 2, done.stdout + done.stderr
    assert "new.toml: no such file" in done.stderr
    assert "base (" in done.stderr
    assert len(_git(repository, "worktree", "list").splitlines()) == 1


def test_a_working_folder_of_the_head_only_is_refused(repository: Path) -> None:
    _git(repository, "mv", "bench", "later")
    _git(repository, "commit", "-qam", "Rename the folder")
    done = _run_action(repository / "later", suite="my.toml", **{"run-options": PLUGIN})
    base = _git(repository, "rev-parse", "HEAD^")[:12]
    assert done.returncode == 2, done.stdout + done.stderr
    assert (
        done.stderr == f"compare_revisions: base ({base}) has no folder later; work in one that both revisions have\n"
    )
    assert len(_git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_both_runs_and_removes_worktrees(number: int, status: int, repository: Path) -> None:
    (repository / "bench/my_attn.py").write_text(HANGS)
    for _ in ("base", "head"):
        _git(repository, "commit", "-qam", "Wait", "--allow-empty")
    temporary, logs = repository.parent / "temporary", repository / "bench/benchmark"
    temporary.mkdir()
    command = [sys.executable, str(ACTION / "compare_revisions.py"), "--suite", "my.toml", f"--run-options={PLUGIN}"]
    variables = environment(TMPDIR=str(temporary))
    script = subprocess.Popen(
        command,
        cwd=repository / "bench",
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # shells ignore SIGINT in the background
    )
    deadline = time.monotonic() + 200
    while not (logs / "head.log").exists() or len(pids := list_descendants(script.pid)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    script.send_signal(number)
    _, errors = script.communicate(timeout=60)
    assert script.returncode == status, errors
    assert errors == f"compare_revisions: ended by {signal.Signals(number).name}\n"
    assert wait_until_gone(pids) == set()
    assert len(_git(repository, "worktree", "list").splitlines()) == 1
    assert list(temporary.iterdir()) == []


def test_examples_that_name_a_plugin_also_name_its_mechanism() -> None:
    files = (CHECKOUT / "docs/how-to/benchmark-in-ci.md", ACTION / "action.yml", ACTION / "compare_revisions.py")
    examples = [line for file in files for line in file.read_text().splitlines() if "--plugin " in line]
    assert len(examples) == 4
    assert [line for line in examples if not re.search("--plugin my_attn.py --variant full,", line)] == []


def test_bad_input_is_refused_before_anything_is_measured(repository: Path, tmp_path: Path) -> None:
    (repository / "benchmark/head").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "plain", {}, "not a git repository"),
        (repository, {"base": "no-such"}, "unknown revision: if the clone is shallow, give actions/checkout"),
        (repository, {"head": "HEAD~9"}, "unknown revision"),
        (repository, {}, "benchmark/head exists; remove it, or choose another --out"),
        (repository, {"install": "./no-such-folder", "out": "other"}, "pip install"),
    ]
    for folder, inputs, message in cases:
        done = _run_action(folder, **inputs)
        assert done.returncode == 2, message
        assert message in done.stderr


def test_the_projects_own_workflow_uses_the_action() -> None:
    workflow = yaml.safe_load((CHECKOUT / ".github/workflows/speed.yml").read_text())
    assert set(workflow) == {"name", True, "jobs"}  # YAML reads `on` as true
    (job,) = workflow["jobs"].values()
    (step,) = [step for step in job["steps"] if step.get("uses", "").startswith("./")]
    assert (CHECKOUT / step["uses"] / "action.yml").is_file()
    inputs = yaml.safe_load((ACTION / "action.yml").read_text())["inputs"]
    assert set(step.get("with", {})) <= set(inputs)
    (checkout,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout")]
    assert checkout["with"]["fetch-depth"] == 2  # HEAD^, the default base
