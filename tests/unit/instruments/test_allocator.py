"""Allocator settings: freed pages are kept, unless environment variables configure the allocator."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from efficient_attn.instruments.allocator import ALLOCATOR_VARIABLES, MAX_SHIFT_BYTES, describe_settings

pytestmark = pytest.mark.slow

CODE = """
import resource, torch
from efficient_attn.instruments.allocator import retain_freed_pages
if {keep}:
    retain_freed_pages()
x = torch.ones(10 * 2**20)
for _ in range(20):  # until the heap has a suitable hole
    x + 1
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    x + 1  # 40 MiB each: 10,240 pages, fewer where the system has huge ones
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*, keep: bool, **variables: str) -> int:
    clean = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_VARIABLES}
    process = subprocess.run(
        [sys.executable, "-c", CODE.format(keep=keep)],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return int(process.stdout)


@pytest.mark.sampled(3)
@pytest.mark.skipif("left alone" in describe_settings(), reason=f"{describe_settings()}")
def test_calls_reuse_pages_of_earlier_calls() -> None:
    assert _faults(keep=True) < _faults(keep=False) / 5  # other small allocations may take some pages


RETURNED = """
import torch
from efficient_attn.instruments.allocator import read_status, retain_freed_pages, return_freed_pages
retain_freed_pages()
block, end = torch.ones(50 * 2**20), torch.ones(2**20)  # 200 MiB below a block that stays
del block
for above in (2**50, 2**20):
    return_freed_pages(above=above)
    print(read_status("VmRSS"))
"""


@pytest.mark.skipif("left alone" in describe_settings(), reason=f"{describe_settings()}")
def test_freed_pages_are_returned_above_a_limit() -> None:
    done = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, text=True, timeout=120, check=True)
    kept, returned = map(int, done.stdout.split())
    assert kept - returned > 190 * 2**20


SHIFTS = """
import os
import torch
from efficient_attn.instruments.allocator import retain_freed_pages, shift_heap
for seed in (1, 1, 2, 3):
    if not os.fork():
        retain_freed_pages()
        shift_heap(seed)
        print(torch.empty(10 * 2**20).data_ptr(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif("left alone" in describe_settings(), reason=f"{describe_settings()}")
def test_workers_of_one_server_have_tensors_at_other_addresses() -> None:
    done = subprocess.run([sys.executable, "-c", SHIFTS], capture_output=True, text=True, timeout=120, check=True)
    same, again, *others = map(int, done.stdout.split())
    assert same == again
    assert len({same, *others}) == 3
    assert all(abs(same - other) <= MAX_SHIFT_BYTES for other in others)
    assert {address % 64 for address in (same, *others)} == {0}


def test_user_settings_of_the_allocator_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    assert describe_settings() == {"left alone": "MALLOC_TRIM_THRESHOLD_ set"}
