"""The export for asv, read back by asv itself."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compare_runs import ENVIRONMENT, failed, record, steady, write

from efficient_attn.errors import UsageError
from efficient_attn.results.asv import to_asv
from efficient_attn.results.file_marks import is_generated
from efficient_attn.results.store import RunWriter

SUITE = {"name": "tiny", "title": "Tiny", "baseline": "full"}
FACTS = {"machine": "Xeon-x2#1a2b3c", "python": "3.12.1", "os": "Linux"}


def _make_run(folder: Path, repository: dict[str, Any] | None, *, scale: float = 1.0) -> Path:
    records = [record("full", 64, steady(10 * scale)), record("linear", 64, steady(2 * scale))]
    records += [record("linear", 128, steady(4 * scale)), failed("full", 128)]
    write(folder, records)
    session = {"run_id": "r", "suite": SUITE, "environment": ENVIRONMENT | FACTS, "repository": repository}
    with RunWriter(folder, resume=True) as writer:
        writer.write_session(session)
    return folder


def _write(run: Path, target: Path) -> dict[Path, Any]:
    contents = to_asv(run, target)
    for file, content in contents.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, allow_nan=False))
    return contents


COMMIT = {"revision": "0123456789" * 4, "committed": 1_700_000_000, "changed": False}


def test_asv_reads_results_benchmarks_and_the_machine(tmp_path: Path) -> None:
    benchmarks = pytest.importorskip("asv.benchmarks")
    config, results = pytest.importorskip("asv.config"), pytest.importorskip("asv.results")
    target = tmp_path / "asv"
    contents = _write(_make_run(tmp_path / "run", COMMIT), target)
    assert all(is_generated(file) for file in contents)
    conf = config.Config.from_json({"project": "p", "repo": ".", "results_dir": str(target)})
    listed = benchmarks.Benchmarks.load(conf)
    (found,) = results.iter_results(str(target))
    assert (found.commit_hash, found.date, found.env_name) == (COMMIT["revision"], 1_700_000_000_000, "tiny")
    assert found.params["machine"] == "Xeon-x2-1a2b3c"
    (key,) = found.get_result_keys(listed)
    assert key == "tiny.all.forward"
    assert listed[key]["params"][0] == ["'full'", "'linear'"]
    values = found.get_result_value(key, listed[key]["params"])
    assert values[:1] + values[2:] == pytest.approx([0.01, 0.002, 0.004], rel=0.01)
    assert values[1] is None or math.isnan(values[1])  # full at 128 failed
    stats = found.get_result_stats(key, listed[key]["params"])[0]
    assert stats["ci_99_a"] < values[0] < stats["ci_99_b"]
    assert len(found.get_result_samples(key, listed[key]["params"])[0]) == 8


@pytest.mark.slow
def test_asv_publishes_the_history_of_a_repository(tmp_path: Path) -> None:
    pytest.importorskip("asv")
    repository, target = tmp_path / "repository", tmp_path / "asv"

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
        return subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout.strip()

    repository.mkdir()
    git("init", "-q", "-b", "main")
    for number in range(2):
        git("commit", "-q", "--allow-empty", "-m", f"Commit {number}")
        revision, committed = git("log", "-1", "--format=%H %ct").split()
        commit = {"revision": revision, "committed": int(committed), "changed": False}
        _write(_make_run(tmp_path / f"run{number}", commit, scale=1 + number), target)
    config = {"version": 1, "project": "p", "repo": str(repository), "branches": ["main"]}
    config |= {"results_dir": str(target), "html_dir": str(tmp_path / "html")}
    (tmp_path / "asv.conf.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "asv", "publish", "--no-pull"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    index = json.loads((tmp_path / "html" / "index.json").read_text())
    assert list(index["benchmarks"]) == ["tiny.all.forward"]
    assert len(index["revision_to_hash"]) == 2
    (graph,) = (tmp_path / "html" / "graphs").rglob("machine-Xeon-x2-1a2b3c/**/tiny.all.forward.json")
    points = json.loads(graph.read_text())
    assert [values[0] for _, values in points] == pytest.approx([0.01, 0.02], rel=0.01)


def test_benchmarks_of_other_suites_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "asv"
    target.mkdir()
    (target / "benchmarks.json").write_text('{"other.x": {"name": "other.x"}, "version": 2}')
    benchmarks = to_asv(_make_run(tmp_path / "run", COMMIT), target)[target / "benchmarks.json"]
    assert list(benchmarks) == ["other.x", "version", "tiny.all.forward"]
    (target / "benchmarks.json").write_text("{")
    with pytest.raises(UsageError, match=r"not asv's list of benchmarks: .*; name another folder"):
        to_asv(tmp_path / "run", target)


@pytest.mark.parametrize(
    ("repository", "message"),
    [(None, "asv needs the commit, and none was recorded"), (COMMIT | {"changed": True}, "uncommitted changes")],
)
def test_runs_without_a_clean_commit_are_refused(repository: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        to_asv(_make_run(tmp_path / "run", repository), tmp_path / "asv")


def test_a_run_without_times_has_no_benchmark(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [failed("full", 64)])
    with RunWriter(folder, resume=True) as writer:
        facts = {"run_id": "r", "suite": SUITE, "environment": ENVIRONMENT | FACTS, "repository": COMMIT}
        writer.write_session(facts)
    (results,) = [x for x in to_asv(folder, tmp_path / "asv").values() if "commit_hash" in x]
    assert results["results"] == {}
