"""What runs on a node, in a process of its own: files, plug-ins, records, checkpoints, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import efficient_attn

NODE = """
import json, os, pickle, sys
from pathlib import Path

from efficient_attn.bench.nodes.node_program import NodeProgram
assert "torch" not in sys.modules  # which reads the variables
program = NodeProgram()
facts = program.describe({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": None})
assert os.environ["OMP_NUM_THREADS"] == "1" and "MKL_NUM_THREADS" not in os.environ
task, units, needed = pickle.loads(Path(sys.argv[1]).read_bytes())
entry = program.begin(task)
records, files = [], []
for unit in units:
    records += program.measure(unit, needed)
    files += program.collect_checkpoints()
again = program.collect_checkpoints()
folder = Path.cwd()
end = program.end()
print(json.dumps({
    "facts": sorted(facts), "entry": sorted(entry), "statuses": [r.row.status for r in records],
    "keys": [r.row.case_key for r in records], "run_ids": sorted({r.row.run_id for r in records}),
    "reasons": [r.row.reason for r in records], "run_id": entry["run_id"], "finished": end["finished"],
    "files": [f.name for f in files], "again": len(again), "left": folder.exists(),
}))
"""

DRIVER = """
import pickle, sys
from pathlib import Path
from efficient_attn.bench.case import group_cases
from efficient_attn.bench.data_files import CarriedFiles
from efficient_attn.bench.nodes.node_program import Needed, NodeTask
from efficient_attn.bench.nodes.unit import make_units
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.bench.planning.suite import load_suite
from efficient_attn.bench.run import describe_run
from efficient_attn.bench.session import SessionSettings
from efficient_attn.registry import plugins
from efficient_attn.tasks import TABLE
import dataclasses, json

loaded = load_suite("suite.toml", TABLE)
cases = make_plan(loaded, Overrides())
units = make_units(cases, group_cases(cases), 1)
if sys.argv[2:]:
    changed = [(g, [dataclasses.replace(c, fingerprint="0" * 24) for c in members]) for g, members in units[0].groups]
    units = [dataclasses.replace(units[0], groups=tuple(changed))]
settings = SessionSettings(entry=describe_run(loaded), timeout_s=60, start_method="inline")
groups = [unit.groups[0][0] for unit in units][:1]
files = CarriedFiles.collect(plugins(), cases)
task = NodeTask(name=sys.argv[1], settings=settings, files=files, groups=groups, earlier=[])
Path("job").write_bytes(pickle.dumps((task, units, Needed())))
print(json.dumps({"keys": [case.key for case in cases], "files": sorted(files.contents)}))
"""

PLUGIN = """
import efficient_attn as ea
from efficient_attn.patterns import Band
from neighbour import WIDTH

@ea.register("mine", family="sparse")
class Mine(ea.SparseAttention):
    def __init__(self, *, window: int = WIDTH) -> None:
        super().__init__(Band(-window, window))
"""
SUITE = """
title = "On a node"
baseline = "full"
rounds = 2
max_rounds = 2
processes = 1
budget_s = 1
plugins = ["mine.py"]
dims = { heads = 2, head_dim = 8 }
variant = [{ name = "full" }, { name = "mine" }]
pairs = 2
vocab = 32
examples = 32
seeds = 1
steps = 8
learning_rates = [1e-3]
[[part]]
name = "speed"
measure = ["forward"]
axes = { seq_len = [16], threads = [1] }
[[part]]
name = "training"
measure = ["mqar"]
axes = { seq_len = [16], threads = [1], causal = [true] }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a suite with a plug-in, and the job of a node."""
    path = tmp_path_factory.mktemp("driver")
    for name, text in {"suite.toml": SUITE, "mine.py": PLUGIN, "neighbour.py": "WIDTH = 4\n"}.items():
        (path / name).write_text(text)
    return path


def _run(script: str, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(efficient_attn.__file__).parents[1]), ""])}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=os.environ | paths)


@pytest.mark.sampled(3)
def test_a_node_measures_with_the_drivers_plug_ins_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    driver = _run(DRIVER, folder, f"efficient-attn-test-{tmp_path.name}-{os.getpid()}")
    assert driver.returncode == 0, driver.stderr
    planned = json.loads(driver.stdout)
    assert planned["files"] == ["mine.py", "neighbour.py"]
    node = _run(NODE, tmp_path, str(folder / "job"))
    assert node.returncode == 0, node.stderr
    result = json.loads(node.stdout.splitlines()[-1])
    assert result["facts"] == ["environment", "niceness", "sources", "time_s", "version"]
    assert {"suite", "environment", "checks", "readiness", "run_id"} <= set(result["entry"])
    assert sorted(result["keys"]) == sorted(planned["keys"]), "digests are the same on the node"
    not_needed = "the best learning rate lies within the grid"  # which the node read from its own rows
    outcomes = set(zip(result["statuses"], result["reasons"], strict=True))
    assert {("ok", None)} <= outcomes <= {("ok", None), ("skipped", not_needed)}
    assert result["run_ids"] == [result["run_id"]]
    assert result["finished"]
    assert all(name.endswith(".pt") for name in result["files"])
    assert result["again"] == 0
    assert not result["left"]


@pytest.mark.sampled(3)
def test_other_sources_on_the_node_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    driver = _run(DRIVER, folder, f"efficient-attn-test-{tmp_path.name}-{os.getpid()}", "changed")
    assert driver.returncode == 0, driver.stderr
    node = _run(NODE, tmp_path, str(folder / "job"))
    assert node.returncode == 1
    assert "UsageError: full: its sources are others on this node; install the same version there" in node.stderr
