"""Kernels in C++: built once, found by later processes, and refused with a reason where there is no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import efficient_attn as ea
from efficient_attn.kernels.native import building

pytestmark = pytest.mark.slow

REASON = building.load_library("scan")[1]
needs_it = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing found yet, and an empty folder to build in."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    building.load_library.cache_clear()
    yield tmp_path
    building.load_library.cache_clear()


def test_no_compiler_is_a_reason(afresh: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ea.UnsupportedError, match=r"'cpp' is not available: .* no C\+\+ compiler \(no-such-compiler\)"):
        ea.create("linear:backend=cpp")
    assert ea.create("linear").backend == "chunked"


@needs_it
def test_no_ninja_is_a_reason(afresh: Path, monkeypatch) -> None:
    monkeypatch.setattr("torch.utils.cpp_extension.is_ninja_available", lambda: False)
    assert "Ninja" in (building.load_library("scan")[1] or "")


@needs_it
def test_what_the_compiler_says_is_a_reason_in_one_line(afresh: Path, monkeypatch, capfd) -> None:
    broken = afresh / "scan.cpp"
    broken.write_text("int x = nonsense;\n")
    (afresh / building.HEADER).touch()
    monkeypatch.setattr(building, "FOLDER", afresh)
    reason = building.load_library("scan")[1] or ""
    assert "error: " in reason
    assert "nonsense" in reason
    assert "\n" not in reason
    monkeypatch.setattr(building, "_build", lambda: pytest.fail("asked again"))
    assert building.load_library("scan")[1] == reason
    assert not list((afresh / "efficient_attn").iterdir())
    assert capfd.readouterr() == ("", "")


def _process(folder: Path, source: str, **variables: str) -> subprocess.Popen[str]:
    """A process of its own. Its builds go to this folder."""
    given = os.environ | {"TORCH_EXTENSIONS_DIR": str(folder), "OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(
        [sys.executable, "-c", source], env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@needs_it
def test_processes_build_side_by_side_and_later_ones_find_it(tmp_path: Path) -> None:
    use = """
import torch, efficient_attn as ea
q = torch.randn(1, 1, 40, 8)
ea.create("full:backend=cpp")(q[:, :, :1], q, q)
"""
    for process in [_process(tmp_path, use) for _ in range(2)]:
        assert (*process.communicate(timeout=120), process.returncode) == ("", "", 0)
    made = sorted((tmp_path / "efficient_attn").iterdir())
    assert [file.name.split("_")[0] for file in made] == ["decode"]  # and nothing else is left
    written = [file.stat().st_mtime_ns for file in made]
    never = "import torch.utils.cpp_extension as c; c.load = None\n"
    process = _process(tmp_path, never + use)
    assert (*process.communicate(timeout=120), process.returncode) == ("", "", 0)
    assert [file.stat().st_mtime_ns for file in made] == written


def test_nothing_is_built_until_it_is_wanted(tmp_path: Path) -> None:
    source = """
import sys, torch, efficient_attn as ea
q = torch.randn(1, 1, 40, 8)
for name in ("linear", "full", "mqa"):
    ea.create(name)(q, q, q, ea.Mask(causal=True))
assert "torch.utils.cpp_extension" not in sys.modules
"""
    process = _process(tmp_path, source)
    assert (*process.communicate(timeout=120), process.returncode) == ("", "", 0)
    assert not list(tmp_path.iterdir())
