"""How often are adversarial mechanisms detected, and honest counterparts accepted?

    python suites/trials/adversary_detection.py [TIMES]

Runs every mechanism of adversaries.py and its counterpart TIMES times (20 by default) through the command line, with
different inputs and orders, and counts the outcomes. `contents` is always correct: its largest speedup is printed, and
must be about 1.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import efficient_attn as ea

ADVERSARIES = Path(__file__).with_name("adversaries.py")
SHORT, LONG = 64, 1100
SUITE = """
title      = "Adversarial mechanisms and their honest counterparts"
measure    = ["forward"]
baseline   = "full"
rounds     = 8
max_rounds = 8
processes  = 1
budget_s   = 5
plugins    = ["{plugin}"]
axes       = {{ seq_len = [{short}, {long}], threads = [1] }}
dims       = {{ heads = 2, head_dim = 8 }}
variant    = [{variants}]
"""


def make_suite(names: Sequence[str]) -> str:
    """A suite of these mechanisms and exact attention, at a short and a long length."""
    variants = ", ".join(f'{{ name = "{name}" }}' for name in ["full", *names])
    return SUITE.format(plugin=ADVERSARIES, short=SHORT, long=LONG, variants=variants)


def main(times: int) -> None:
    names = ea.load_plugin(str(ADVERSARIES))
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in names}
    gains: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "adversaries.toml").write_text(make_suite(names), encoding="utf-8")
        for seed in range(times):
            out = Path(folder) / str(seed)
            options = ["--out", str(out), "--seed", str(seed)]
            command = [sys.executable, "-m", "efficient_attn", "run", "adversaries.toml", *options]
            subprocess.run(command, cwd=folder, check=False, capture_output=True)
            rows = ea.load(out)
            for name in names:
                mechanism_rows = rows[rows.variant == name]
                outcomes[name][str("ok" if (mechanism_rows.status == "ok").all() else "detected")] += 1
            gains += rows[rows.variant == "zz_contents"].speedup.dropna().tolist()
    for name in sorted(names, key=lambda n: n.replace("honest_", "")):
        print(f"{name:24}", ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes[name].items())))
    print(f"largest speedup of zz_contents over full: {max(gains):.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
