"""Are rows of a run on a Ray cluster lost or duplicated when its processes, its nodes or the run itself end?

    python suites/trials/cluster_faults.py [FAULTS [KIND ...]]

Two nodes are simulated on this machine. A run of sixteen small groups and of the trainings of two mechanisms meets a
fault of a random kind at a random moment: ``case`` (the worker of a case is killed), ``program`` (that of a node),
``node`` (all its processes; a new one joins), ``freeze`` (all processes of a node are stopped for a minute), ``driver``
(the command, which is resumed). After FAULTS (100 by default) the run continues until it is complete. Scores have to be
those of a run without faults, except of cases that the fault itself ended. Linux only.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from killed_runs import NO_RESULT, SUITE, read_scores
from processes import list_descendants, wait_until_gone

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from ray_nodes import RayNodes, start_nodes

KINDS = ("case", "program", "node", "freeze", "driver")
NODE_TIMEOUT_S = 10
FROZEN_S = 60.0  # longer than the time limit
MOST_STARTS = 60  # of one run
MAX_WAIT_S = 25.0  # before a fault
ENDED_BY_FAULT = ("crashed", "interrupted", "oom")


def start_run(folder: Path, address: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "efficient_attn", "run", "groups.toml", "--out", "out", "--engine", "ray"]
    command += ["--address", address, "--node-timeout", str(NODE_TIMEOUT_S)]
    command += ["--resume", "--retry-failed"] if (folder / "out").is_dir() else []
    log = (folder / "stderr").open("a")
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=log)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def cause_fault(kind: str, nodes: RayNodes, run: subprocess.Popen[bytes], rng: random.Random) -> bool:
    """Cause a fault; False if there was nothing to end."""
    programs = nodes.list_programs()
    if kind == "driver":
        children = list_descendants(run.pid)
        run.kill()
        run.wait()
        wait_until_gone(children)
        return True
    if kind in ("node", "freeze"):
        node = rng.choice(nodes.nodes)
        processes = nodes.list_processes(node)
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if kind == "node" else signal.SIGSTOP)
        if kind == "node":
            nodes.nodes.remove(node)
            nodes.add()
        else:
            time.sleep(FROZEN_S)
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            time.sleep(2)
            if not nodes.is_alive(node):  # Ray has given it up, and it has ended itself
                nodes.nodes.remove(node)
                nodes.add()
        return True
    if not programs:
        return False
    program = rng.choice(programs)
    workers = sorted(list_descendants(program))
    if kind == "case" and not workers:
        return False
    kill(rng.choice(workers) if kind == "case" else program)
    return True


def check_rows(folder: Path) -> Counter[str]:
    """What is wrong with a run's rows."""
    wrong: Counter[str] = Counter()
    path = folder / "out" / "rows.jsonl"
    content = path.read_bytes() if path.is_file() else b""
    wrong["truncated"] = int(not content.endswith(b"\n") and bool(content))
    rows = [json.loads(line) for line in content.splitlines()]
    results = [r["case_key"] for r in rows if r["status"] not in (*NO_RESULT, *ENDED_BY_FAULT)]
    wrong["duplicated"] = len(results) - len(set(results))
    return wrong


def main(faults: int, kinds: list[str]) -> int:
    """Print a line for each complete run, then the sums. Returns 1 if anything was wrong."""
    rng, wrong, counts, start = random.Random(0), Counter[str](), Counter[str](), time.perf_counter()
    with start_nodes(2) as nodes, tempfile.TemporaryDirectory() as name:
        reference = Path(name) / "reference"
        reference.mkdir()
        (reference / "groups.toml").write_text(SUITE)
        assert start_run(reference, nodes.address).wait() == 0, (reference / "stderr").read_text()
        expected = read_scores(reference)
        print(f"{len(expected)} cases, {time.perf_counter() - start:.0f} s", flush=True)
        while sum(counts.values()) < faults:
            folder = Path(name) / "run"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "groups.toml").write_text(SUITE)
            run, starts = start_run(folder, nodes.address), 1
            while True:
                with suppress(subprocess.TimeoutExpired):
                    run.wait(rng.uniform(1, MAX_WAIT_S))
                if run.poll() is not None:
                    wrong.update(check_rows(folder))
                    if run.returncode == 0:
                        break
                    assert starts < MOST_STARTS, (folder / "stderr").read_text()[-2000:]
                    run, starts = start_run(folder, nodes.address), starts + 1
                elif sum(counts.values()) < faults:
                    kind = rng.choice(kinds)
                    counts[kind] += cause_fault(kind, nodes, run, rng)
            scores = read_scores(folder)
            different = [key for key, value in expected.items() if scores.get(key) != value]
            wrong["different"] += len(different)
            wrong["lost"] += len(expected.keys() - scores.keys())
            done = sum(counts.values())
            print(f"{done:4} faults, {time.perf_counter() - start:.0f} s: complete: {not different}", flush=True)
            for key in different:
                print(f"  {key}: {expected[key]}, here {scores.get(key)}", flush=True)
    print(dict(counts), {name: count for name, count in wrong.items() if count} or "nothing wrong")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, sys.argv[2:] or list(KINDS)))
