"""Counted peaks, compared with an independent trace of all allocations of a process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TRIAL = Path(__file__).parents[3] / "suites/trials/allocation_trace.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and a C compiler"),
]


@pytest.mark.sampled(12)
def test_counted_peaks_agree_with_traced_allocations() -> None:
    command = [sys.executable, str(TRIAL), "full", "linear", "sliding_window:window=16", "--lengths", "700"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = [line.split() for line in done.stdout.splitlines()[1:]]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 3 * 4
    for *_, counted, traced, difference, right in lines:
        assert right == "yes"
        assert difference == f"{int(counted) / int(traced) - 1:.2%}"
    large = [line for line in lines if line[0].startswith("forward")]
    assert all(0.98 * int(traced) <= int(counted) <= int(traced) for *_, counted, traced, _, _ in large)
