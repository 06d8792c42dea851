"""`compare` under heavy noise: eight simultaneous runs of the same code, all pairs; then one case that is 10% slower.

    python suites/trials/simultaneous_runs.py [RUNS] [REPEATS]

All runs are of a small suite of decode steps. Of those at once no pair may show a difference, though everything in them
is disturbed. Of those one after the other a case that does 10% more work must be found slower, or be named as blind.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

PLUGIN = Path(__file__).parents[1] / "plugins" / "twins.py"
SLOWDOWN = 0.1
AT_ONCE_SAMPLING = {"rounds": 8, "most": 8, "budget_s": 4}
IN_TURN_SAMPLING = {"rounds": 32, "most": 64, "budget_s": 15}
SUITE = """
title      = "Steps"
measure    = ["decode"]
baseline   = "full"
rounds     = {rounds}
max_rounds = {most}
budget_s   = {budget_s}
plugins    = ["{plugin}"]
axes       = {{ seq_len = [1024, 8192], threads = [1] }}
dims       = {{ heads = 8, head_dim = 64 }}
variant    = [
  {{ name = "full" }},
  {{ name = "slower" }},
  {{ name = "gqa", options = {{ kv_heads = 2 }} }},
  {{ name = "linear" }},
]
"""


def write_suite(folder: Path, sampling: dict[str, int]) -> None:
    (folder / "steps.toml").write_text(SUITE.format(plugin=PLUGIN, **sampling))


def start(folder: Path, *arguments: str, slowdown: float = 0.0) -> subprocess.Popen[str]:
    environment = os.environ | {"TWINS_SLOWDOWN": str(slowdown), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "efficient_attn", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    """The output of a process. Cases may fail if many runs share a machine (exit code 1); the rest is compared."""
    output, _ = process.communicate()
    if process.returncode not in (0, 1):
        raise SystemExit(f"{process.args}: exit code {process.returncode}\n{output}")
    return output


def compare(folder: Path, base: str, new: str) -> dict[str, Any]:
    return json.loads(finish(start(folder, "compare", base, new, "--tolerance", str(SLOWDOWN), "--json")))


def count_kinds(cases: list[dict[str, Any]]) -> Counter[str]:
    return Counter("blind" if case["blind"] else case["kind"] for case in cases)


def run_together(folder: Path, runs: int) -> None:
    write_suite(folder, AT_ONCE_SAMPLING)
    names = [f"run{i}" for i in range(runs)]
    processes = [start(folder, "run", "steps.toml", "--out", name) for name in names]
    for process in processes:
        finish(process)
    kinds: Counter[str] = Counter()
    for base, new in itertools.combinations(names, 2):
        kinds.update(count_kinds(compare(folder, base, new)["cases"]))
    differences = kinds["faster"] + kinds["slower"]
    print(f"{runs} runs at once, {runs * (runs - 1) // 2} pairs: {differences} differences; {dict(kinds)}", flush=True)


def run_one_by_one(folder: Path, repeats: int) -> None:
    write_suite(folder, IN_TURN_SAMPLING)
    slower: Counter[str] = Counter()
    unchanged: Counter[str] = Counter()
    for repeat in range(repeats):
        for name, slowdown in ((f"base{repeat}", 0.0), (f"worse{repeat}", SLOWDOWN)):
            finish(start(folder, "run", "steps.toml", "--out", name, slowdown=slowdown))
        cases = compare(folder, f"base{repeat}", f"worse{repeat}")["cases"]
        slower.update(count_kinds([case for case in cases if "/slower/" in case["name"]]))
        unchanged.update(count_kinds([case for case in cases if "/slower/" not in case["name"]]))
    missed = slower.total() - slower["slower"] - slower["blind"]
    print(f"{SLOWDOWN:.0%} slower, {slower.total()} cases: {missed} missed; {dict(slower)}", flush=True)
    print(f"the same beside it, {unchanged.total()} cases: {dict(unchanged)}", flush=True)


def main(runs: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        run_together(folder, runs)
        run_one_by_one(folder, repeats)
        print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(*(numbers + [8, 3][len(numbers) :])[:2])
