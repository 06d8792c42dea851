"""Import and export of other tools' files: pytest-benchmark reads ours, and we read exported."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compare_runs import ENVIRONMENT, failed, measured, record, steady, write

from efficient_attn.errors import UsageError
from efficient_attn.results.compare import compare
from efficient_attn.results.exchange import (
    from_pytest_benchmark,
    list_round_values,
    read_run,
    to_github_action,
    to_pytest_benchmark,
)
from efficient_attn.results.rows import Record

pytestmark = pytest.mark.slow

BENCHMARKS = """
import pytest

@pytest.mark.parametrize("n", [1000, 2000])
def test_sum(benchmark, n):
    benchmark.pedantic(lambda: sum(range(n)), rounds=7, iterations=3)
"""
TIMED = [record("full", 64, steady(10), digest="abc"), record("linear", 64, steady(2), digest="abc")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    extra = [failed("linear", 128), record("linear", 64, task="fidelity", mode=None, case_key="tiny/fidelity/linear#1")]
    return write(tmp_path / "made", [*TIMED, *extra])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that pytest-benchmark writes: ``full.json`` with the rounds, ``stats.json`` without."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "test_sums.py").write_text(BENCHMARKS)
    alone = {name: x for name, x in os.environ.items() if "XDIST" not in name}  # among workers it measures nothing
    for name, flags in {"full": ["--benchmark-save-data"], "stats": []}.items():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-disable-gc", *flags]
        command += [f"--benchmark-json={name}.json", f"--benchmark-storage={folder}", "test_sums.py"]
        subprocess.run(command, cwd=folder, env=alone, check=True, capture_output=True, timeout=120)
    content = json.loads((folder / "full.json").read_text())
    content["benchmarks"] = [b for b in content["benchmarks"] if len(b["stats"].get("data", [])) == 7]
    assert len(content["benchmarks"]) == 2
    return folder


def _export(folder: Path, file: Path) -> Path:
    file.write_text(json.dumps(to_pytest_benchmark(folder)))
    return file


# -- pytest-benchmark ----------------------------------------------------------------------------------------------


def test_pytest_benchmarks_own_tool_reads_our_export(folder: Path, tmp_path: Path) -> None:
    file = _export(folder, tmp_path / "ours.json")
    tool = Path(sys.executable).with_name("pytest-benchmark")
    command = [tool, "compare", file, "--group-by=group", "--columns=min,max,mean,stddev,median,iqr,outliers,ops"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "tiny/all/forward/n64-b1-h4-d64/float32-cpu-t1-all': 2 tests" in done.stdout
    assert {"linear", "full"} <= {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert done.stderr == ""
    pair = [tool, "compare", "--between=median,ops", file, _export(folder, tmp_path / "later.json")]
    again = subprocess.run(pair, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "2 sources" in again.stdout
    assert again.stderr == ""


@pytest.mark.sampled(6)
def test_an_export_has_all_that_pytest_benchmark_writes(folder: Path, exported: Path) -> None:
    ours, model = to_pytest_benchmark(folder), json.loads((exported / "full.json").read_text())
    assert ours.keys() == model.keys()
    assert ours["benchmarks"][0].keys() == model["benchmarks"][0].keys()
    assert ours["benchmarks"][0]["stats"].keys() == model["benchmarks"][0]["stats"].keys()


def test_statistics_equal_those_of_pytest_benchmark(folder: Path) -> None:
    from pytest_benchmark.stats import Stats

    for benchmark in to_pytest_benchmark(folder)["benchmarks"]:
        stats = Stats()
        stats.data = benchmark["stats"]["data"]
        for name in ("min", "max", "mean", "stddev", "median", "rounds", "ops", "total", "stddev_outliers"):
            assert benchmark["stats"][name] == pytest.approx(getattr(stats, name)), name


def test_only_what_was_timed_is_exported(folder: Path) -> None:
    exported = to_pytest_benchmark(folder)["benchmarks"]
    assert [b["fullname"].split("/")[3] for b in exported] == ["full", "linear"]
    assert all("#" not in b["fullname"] for b in exported)
    assert exported[1]["stats"]["median"] == pytest.approx(0.002, rel=0.01)
    assert exported[1]["stats"]["iterations"] == 4


def test_an_export_read_back_is_the_run(tmp_path: Path) -> None:
    import numpy as np

    one, two = (measured(np.random.default_rng(seed), groups=2) for seed in (1, 2))
    folders = write(tmp_path / "one", one), write(tmp_path / "two", two)
    files = [_export(folder, tmp_path / f"{folder.name}.json") for folder in folders]
    direct, through = (compare(*(read_run(p) for p in pair)) for pair in (folders, files))
    for change, other in zip(direct.changes, through.changes, strict=True):
        assert (change.name, change.kind, change.by) == (other.name, other.kind, other.by)
        assert (change.low, change.high) == pytest.approx((other.low, other.high))
    assert {c.by for c in through.changes} == {"speedup", "latency"}
    assert not compare(read_run(folders[0]), read_run(files[0])).unlike


def test_rounds_of_pytest_benchmark_are_read(exported: Path) -> None:
    run = from_pytest_benchmark(exported / "full.json")
    assert [r.row.case_key for r in run.records] == [f"test_sums.py::test_sum[{n}]" for n in (1000, 2000)]
    model = json.loads((exported / "full.json").read_text())
    for found, benchmark in zip(run.records, model["benchmarks"], strict=True):
        assert list_round_values(found) == pytest.approx([s * 1e3 for s in benchmark["stats"]["data"]])
        assert found.row.latency_ms == pytest.approx(benchmark["stats"]["median"] * 1e3)
    (environment,) = run.environments
    assert model["machine_info"]["cpu"]["brand_raw"].replace(" ", "-") in environment["machine"]
    assert model["machine_info"]["node"] not in environment["machine"].split("-")


def test_without_rounds_the_summary_is_used(exported: Path, tmp_path: Path) -> None:
    content = json.loads((exported / "full.json").read_text())
    for benchmark in content["benchmarks"]:
        benchmark["stats"].pop("data")
        benchmark["stats"] |= {"mean": 2.0, "stddev": 0.02, "rounds": 400}
    (tmp_path / "a.json").write_text(json.dumps(content))
    for benchmark in content["benchmarks"]:
        benchmark["stats"]["mean"] = 2.2
    (tmp_path / "b.json").write_text(json.dumps(content))
    a, b = (read_run(tmp_path / f"{name}.json") for name in "ab")
    (change, _) = compare(a, b, drift=0.0).changes
    assert change.kind == "slower"
    assert change.ratio == pytest.approx(1 / 1.1)
    error = math.hypot(0.01, 0.02 / 2.2) / 20  # of two relative means of 400
    assert math.log((change.high or 0) / (change.low or 1)) / 2 == pytest.approx(2.24 * error, rel=0.01)  # 97.5% twice
    mixed = compare(read_run(exported / "full.json"), a, drift=0.0).changes
    assert all(c.low is not None for c in mixed)  # means with means, where one has no rounds


def test_files_without_data_are_read_as_they_come(exported: Path) -> None:
    run = from_pytest_benchmark(exported / "stats.json")
    assert [list_round_values(r) for r in run.records] == [[], []] or all(
        len(list_round_values(r)) == 7 for r in run.records
    )
    assert all(r.samples["summary"][2] == 7 for r in run.records)


def test_rounds_of_zero_seconds_leave_the_summary(tmp_path: Path) -> None:
    stats = {"mean": 1e-9, "stddev": 1e-9, "rounds": 3, "median": 0.0, "data": [0.0, 0.0, 3e-9]}
    content = {"machine_info": {}, "benchmarks": [{"name": "x", "fullname": "f::x", "stats": stats}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    (found,) = from_pytest_benchmark(tmp_path / "a.json").records
    assert list_round_values(found) == []
    run = read_run(tmp_path / "a.json")
    assert compare(run, run, across_machines=True).changes[0].kind == "inconclusive"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "ValueError"),
        ("[]", "TypeError"),
        ("{}", "'benchmarks'"),
        ('{"benchmarks": [], "machine_info": 3}', "AttributeError"),
        ('{"benchmarks": [{"name": "x"}], "machine_info": {}}', "'stats'"),
    ],
)
def test_other_files_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=f"not pytest-benchmark's JSON: .*{message}"):
        read_run(tmp_path / "a.json")
    with pytest.raises(UsageError, match=r"gone\.json: cannot be read: No such file"):
        read_run(tmp_path / "gone.json")


def test_a_run_is_read_with_one_value_for_each_round(tmp_path: Path) -> None:
    rounds = [[1.0, 9.0, 2.0], [3.0], [5.0, 4.0]]
    samples = {"latency_ms": rounds, "process": [0, 0, 1], "calls": 3, "kernels": ["mm"], "seen": [{}]}
    original = Record(record("full", 64, steady(10)).row, samples)
    write(tmp_path / "run", [original])
    (kept,) = read_run(tmp_path / "run").records
    assert kept.row == original.row
    assert kept.samples == {"round_ms": list_round_values(original), "process": [0, 0, 1], "calls": 3}
    assert list_round_values(kept) == list_round_values(original) == [2.0, 3.0, 5.0]


def test_a_runs_rows_file_names_the_run(folder: Path) -> None:
    assert read_run(folder / "rows.jsonl").environments == read_run(folder).environments == [ENVIRONMENT]


# -- github-action-benchmark ---------------------------------------------------------------------------------------


def test_github_action_benchmark_export(folder: Path) -> None:
    entries: list[dict[str, Any]] = to_github_action(folder)
    assert [set(e) for e in entries] == [{"name", "unit", "value", "range", "extra"}] * 2
    assert json.loads(json.dumps(entries, allow_nan=False)) == entries
    full = entries[0]
    assert (full["unit"], full["range"]) == ("ms", "± 2.0%")
    assert full["value"] == pytest.approx(10, rel=0.01)
    assert full["extra"] == "1x the baseline's speed\nmachine Xeon-x2-15GiB"
    assert all(isinstance(e[name], str) for e in entries for name in ("name", "unit", "range", "extra"))


def test_a_time_without_an_interval_has_no_range(tmp_path: Path) -> None:
    single = record("linear", 64, [1.0], latency_ms_low=None, latency_ms_high=None)
    (entry,) = to_github_action(write(tmp_path / "single", [single]))
    assert "range" not in entry
