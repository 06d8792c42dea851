"""How often does `compare` report noise as a difference, and how often does it detect a slowdown of 5%?

    python suites/trials/compare_error_rates.py [REPEATS]

Each repeat runs a small suite three times: twice unchanged, and once with one mechanism slowed down. The first run is
compared with each of the others by `efficient-attn compare` with default options.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

PLUGIN = Path(__file__).parents[1] / "plugins" / "twins.py"
SUITE = """
title    = "Twins"
measure  = ["forward"]
baseline = "full"
plugins  = ["{plugin}"]
axes     = {{ seq_len = [128, 256, 512, 1024, 2048], threads = [1] }}
dims     = {{ heads = 4, head_dim = 64 }}
variant  = [{{ name = "full" }}, {{ name = "twin" }}, {{ name = "slower" }}]
"""


def run_command(folder: Path, *arguments: str, slowdown: float = 0.0) -> str:
    environment = os.environ | {"TWINS_SLOWDOWN": str(slowdown)}
    command = [sys.executable, "-m", "efficient_attn", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout


def compare_runs(folder: Path, base: str, new: str) -> list[dict[str, Any]]:
    return json.loads(run_command(folder, "compare", base, new, "--json"))["cases"]


def main(repeats: int) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for repeat in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "twins.toml").write_text(SUITE.format(plugin=PLUGIN))
            for run, slowdown in (("base", 0.0), ("again", 0.0), ("worse", 0.05)):
                run_command(folder, "run", "twins.toml", "--out", run, slowdown=slowdown)
            counts.update(("equal", case["kind"]) for case in compare_runs(folder, "base", "again"))
            for case in compare_runs(folder, "base", "worse"):
                counts["5% slower" if "/slower/" in case["name"] else "equal", case["kind"]] += 1
        print(f"after {repeat + 1} repeats:", flush=True)
        for kind in ("equal", "5% slower"):
            kind_counts = {verdict: n for (k, verdict), n in sorted(counts.items()) if k == kind}
            print(f"  {kind}: {sum(kind_counts.values())} cases: {kind_counts}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
