"""How often are adversarial mechanisms detected, and honest counterparts accepted?

    python suites/trials/adversary_detection.py [TIMES]

Runs every mechanism of the plug-ins adversaries*.py and its counterpart TIMES times (20 by default) through the command
line, with different seeds, and prints how often each was found and how often its counterpart was not accepted.

Most are found if a row is `invalid`. Others are correct: `contents` is found if it is not faster than its counterpart,
`one_core` and `two_cores` too (on a machine whose processors are busy), and those that hide memory if their row shows
it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

import efficient_attn as ea

PLUGINS = tuple(sorted(Path(__file__).parent.glob("adversaries*.py")))
SHORT, LONG = 64, 1100
HEADS, HEAD_DIM = 2, 8
DECODED = "hidden_cache"  # the one that decodes
MAX_GAIN = 1.25  # speedup over its honest counterpart of a mechanism that gains nothing, as `PARALLEL_RATIO`
SCORES_BYTES = 8 * HEADS * LONG**2  # of float64
MIB = 2**20
SUITE = """
title      = "Adversarial mechanisms and their honest counterparts"
baseline   = "full"
rounds     = {rounds}
max_rounds = {rounds}
processes  = 2
budget_s   = 5
plugins    = [{plugins}]
dims       = {{ heads = {heads}, head_dim = {head_dim} }}

[[part]]
name    = "calls"
measure = ["forward", "peak_memory"]
axes    = {{ seq_len = [{short}, {long}], threads = [1] }}
variant = [{called}]

[[part]]
name    = "decoding"
measure = ["decode"]
axes    = {{ seq_len = [{long}], threads = [1] }}
variant = [{decoded}]
"""


def list_names() -> list[str]:
    """The adversarial mechanisms of all plug-ins, without the prefix ``zz_``."""
    names = [name.removeprefix("zz_") for plugin in PLUGINS for name in ea.load_plugin(str(plugin))]
    return [name for name in names if not name.startswith("honest_")]


def make_suite(names: Sequence[str], rounds: int = 8) -> str:
    """A suite of these mechanisms, their counterparts and exact attention, at a short and a long length."""

    def list_variants(selected: Sequence[str]) -> str:
        variants = [f"zz_{kind}{name}" for name in selected for kind in ("", "honest_")]
        return ", ".join(f'{{ name = "{name}" }}' for name in ["full", *variants])

    return SUITE.format(
        plugins=", ".join(f'"{plugin}"' for plugin in PLUGINS),
        rounds=rounds,
        heads=HEADS,
        head_dim=HEAD_DIM,
        short=SHORT,
        long=LONG,
        called=list_variants([name for name in names if name != DECODED]),
        decoded=list_variants([name for name in names if name == DECODED]),
    )


def _is_true(value: object) -> bool:
    """Whether a comparison is true; one with a value that was not measured is not."""
    return value is not pd.NA and bool(value)


def gains_nothing(name: str, rows: pd.DataFrame) -> bool:
    """Whether a mechanism is not faster than its counterpart at the long length."""
    long = rows[rows.seq_len == LONG].set_index("variant").latency_ms
    return _is_true(long[f"zz_honest_{name}"] / long[f"zz_{name}"] < MAX_GAIN)


def shows_resident_peak(name: str, rows: pd.DataFrame) -> bool:
    """Whether the resident peak of the longest call exceeds the counted one by most of the hidden array."""
    row = rows[(rows.variant == f"zz_{name}") & (rows.seq_len == LONG)].iloc[0]
    return _is_true(row.process_peak_bytes > 1.2 * row.peak_memory_bytes + 16 * MIB)


def shows_kept_bytes(name: str, rows: pd.DataFrame) -> bool:
    """Whether the buffer that is kept between the longest calls is counted."""
    row = rows[(rows.variant == f"zz_{name}") & (rows.seq_len == LONG)].iloc[0]
    return _is_true(row.kept_between_calls_bytes >= SCORES_BYTES)


def shows_state(name: str, rows: pd.DataFrame) -> bool:
    """Whether all keys and values are counted as decode state."""
    row = rows[rows.variant == f"zz_{name}"].iloc[0]
    return _is_true(row.state_bytes >= 2 * HEADS * LONG * HEAD_DIM * 4)


SHOWN: dict[str, Callable[[str, pd.DataFrame], bool]] = {
    "contents": gains_nothing,
    "one_core": gains_nothing,  # if its thread gets the processor before its call returns
    "two_cores": gains_nothing,
    "numpy_workspace": shows_resident_peak,
    "retained_buffers": shows_kept_bytes,
    "hidden_cache": shows_state,
}


def is_found(name: str, rows: pd.DataFrame) -> bool:
    """Whether the rows of a run show a mechanism's manipulation."""
    own = rows[rows.variant == f"zz_{name}"]
    if (own.status == "invalid").any():
        return True
    shown = SHOWN.get(name)
    return shown is not None and not own.empty and shown(name, rows)


def is_accepted(name: str, rows: pd.DataFrame) -> bool:
    """Whether all rows of the honest counterpart are measured."""
    return bool((rows[rows.variant == f"zz_honest_{name}"].status == "ok").all())


def run_suite(folder: Path, out: Path, seed: int) -> pd.DataFrame:
    """The rows of one run."""
    command = [sys.executable, "-m", "efficient_attn", "run", "adversaries.toml", "--out", str(out)]
    environment = os.environ | {"TMPDIR": str(folder)}  # where one mechanism stores results
    command += ["--seed", str(seed)]
    subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True)
    return ea.load(out)


def main(times: int) -> None:
    names = list_names()
    found: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    baseline: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "adversaries.toml").write_text(make_suite(names), encoding="utf-8")
        for seed in range(times):
            rows = run_suite(folder, folder / str(seed), seed)
            found.update(name for name in names if is_found(name, rows))
            rejected.update(name for name in names if not is_accepted(name, rows))
            baseline.update(rows[rows.variant == "full"].status)
            for _, row in rows[(rows.status != "ok") & rows.variant.str.contains("honest|full")].iterrows():
                print(f"seed {seed}: {row.variant} {row.seq_len} is {row.status}: {row.reason}", flush=True)
    print(f"{'mechanism':20} {'found':>8} {'false alarms':>14}")
    for name in sorted(names):
        print(f"{name:20} {f'{found[name]}/{times}':>8} {f'{rejected[name]}/{times}':>14}")
    print(
        f"found: {found.total()} of {len(names) * times}; false alarms: {rejected.total()}; baseline: {dict(baseline)}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
