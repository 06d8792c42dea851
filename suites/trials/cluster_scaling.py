"""How much faster is a run on two nodes of a Ray cluster than on one, and what does a case cost beside its own time?

    python suites/trials/cluster_scaling.py [GROUPS [SECONDS]]

Cases that sleep, so that two nodes that are simulated on one machine do not compete for its processors: GROUPS groups
(200 by default) of one case of SECONDS (.5 by default), on this machine, on one node and on two. The first
times are those between the first and the last row, without starting and measuring the machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from ray_nodes import start_nodes

TASK = """
import time
from efficient_attn import tasks

def plan(request):
    for axes in request.grid.combine("seq_len"):
        yield request.make_group(tasks.CaseConfig(max_len=axes["seq_len"], threads=1, **axes)), None

def judge(case, row, report_stage):
    time.sleep(SECONDS)
    row.status, row.extra = "ok", {"end": time.time()}
    return tasks.Record(row)

def guess(case, best):
    return tasks.Guess(SECONDS, 0, 0)

columns = {"end": "when it ended"}
tasks.register_task(tasks.Task(name="nap", words=("nap",), plan=plan, judge=judge, guess=guess, columns=columns))
"""
SUITE = """
title   = "Naps"
measure = ["nap"]
plugins = ["nap.py"]
axes    = { seq_len = LENGTHS }
variant = [{ name = "full" }]
"""


def measure(folder: Path, name: str, groups: int, *options: str) -> tuple[float, float]:
    """Seconds between the first and the last line of progress, and of the whole command."""
    command = [sys.executable, "-m", "efficient_attn", "run", "naps.toml", "--out", name, *options]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    times = [time.perf_counter() for line in process.stderr if line.startswith("[")]
    assert process.wait() == 0
    assert len(times) == groups, f"{len(times)} rows"
    return times[-1] - times[0], time.perf_counter() - start


def main(groups: int, seconds: float) -> None:
    """Print a line for each number of nodes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "nap.py").write_text(TASK.replace("SECONDS", str(seconds)))
        (folder / "naps.toml").write_text(SUITE.replace("LENGTHS", str(list(range(8, 8 + groups)))))
        local, whole = measure(folder, "local", groups)
        spent = (local - (groups - 1) * seconds) / (groups - 1)
        print(
            f"this machine: {local:.1f} s, of it {spent * 1e3:.0f} ms a case not asleep; {whole:.1f} s in all",
            flush=True,
        )
        by_nodes: dict[int, float] = {}
        for count in (1, 2):
            with start_nodes(count) as nodes:
                address = ("--engine", "ray", "--address", nodes.address)
                by_nodes[count], whole = measure(folder, f"nodes-{count}", groups, *address)
            extra = count * (by_nodes[count] - local / count) / (groups - 1)
            text = f"{by_nodes[count]:.1f} s, {extra * 1e3:.0f} ms a case more than here; {whole:.1f} s in all"
            print(f"{count} node{'s' if count > 1 else ''}: {text}", flush=True)
        print(f"two nodes are {by_nodes[1] / by_nodes[2]:.2f} times as fast as one")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, float(sys.argv[2]) if len(sys.argv) > 2 else 0.5)
