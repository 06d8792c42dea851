"""Resident memory, in processes that have not made a larger call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attn.instruments import allocator

MIB = 2**20
CODE = """
import ctypes, mmap
import numpy as np
import torch
from efficient_attn.instruments.allocator import measure_resident_growth, retain_freed_pages

retain_freed_pages()
kept = []
torch.ones(8).sum(), np.ones(8, dtype=np.uint8).sum()  # loads code, which is part of resident memory
{before}
growth = measure_resident_growth(lambda: {call})
print(growth.peak, growth.held)
"""


def _measure(call: str, before: str = "") -> tuple[float, float]:
    """The peak and the held growth in MiB of a call in a new process."""
    command = [sys.executable, "-c", CODE.format(call=call, before=before)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    peak, held = map(int, done.stdout.split())
    return peak / MIB, held / MIB


linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's clear_refs")


@pytest.mark.sampled(3)
@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "peak", "held"),
    [
        ("torch.ones(64 * 2**18)", 64, 64),
        ("torch.ones(64 * 2**18).sum()", 64, 0),
        ("np.ones(64 * 2**20, dtype=np.uint8).sum()", 64, 0),
        ("kept.append(bytearray(b'1') * (64 * 2**20))", 64, 64),
        ("kept.append([mmap.mmap(-1, 64 * 2**20), kept]) or kept[0][0].write(b'1' * (64 * 2**20))", 128, 64),
        ("ctypes.memset(ctypes.CDLL(None).malloc(48 * 2**20) or 0, 1, 0)", 0, 0),  # never touched
        ("len('small')", 0, 0),
    ],
)
def test_growth_is_that_of_touched_pages_whoever_allocates_them(call: str, peak: int, held: int) -> None:
    measured = _measure(call)
    assert measured == pytest.approx((peak, held), abs=3)


@linux
@pytest.mark.slow
def test_memory_freed_before_the_call_does_not_hide_it() -> None:
    """The allocator of workers keeps freed memory, and returns it before the call."""
    assert _measure("torch.ones(64 * 2**18).sum()", "torch.ones(256 * 2**18).sum()")[0] == pytest.approx(64, abs=3)


def test_a_system_without_the_counter_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(allocator, "_CLEAR_REFS", tmp_path / "none" / "clear_refs")
    with pytest.raises(OSError, match="clear_refs"):
        allocator.measure_resident_growth(lambda: pytest.fail("called"))


def test_a_counter_that_is_not_reset_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    monkeypatch.setattr(allocator, "_CLEAR_REFS", tmp_path / "clear_refs")
    monkeypatch.setattr(allocator, "_STATUS", status)
    for text, reason in (
        ("VmHWM:\t 9000 kB\nVmRSS:\t 5000 kB\n", "does not reset VmHWM"),
        ("VmRSS:\t 5 kB\n", "no VmHWM"),
    ):
        status.write_text(text)
        with pytest.raises(OSError, match=reason):
            allocator.measure_resident_growth(lambda: pytest.fail("called"))
