"""C++ kernels are built once and found by later processes; without a compiler the reason is reported."""

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
needs_cpp = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.fixture
def build_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder for builds, with no library loaded yet."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    building.load_library.cache_clear()
    yield tmp_path
    building.load_library.cache_clear()


def test_missing_compiler_is_reported(build_folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ea.UnsupportedError, match=r"'cpp' is not available: .* no C\+\+ compiler \(no-such-compiler\)"):
        ea.create("linear:backend=cpp")
    assert ea.create("linear").backend == "chunked"


@needs_cpp
def test_missing_ninja_is_reported(build_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("torch.utils.cpp_extension.is_ninja_available", lambda: False)
    assert "Ninja" in (building.load_library("scan")[1] or "")


@needs_cpp
def test_compiler_error_is_reported_in_one_line(build_folder: Path, monkeypatch, capfd) -> None:
    broken = build_folder / "scan.cpp"
    broken.write_text("int x = nonsense;\n")
    (build_folder / building.HEADER).touch()
    monkeypatch.setattr(building, "FOLDER", build_folder)
    reason = building.load_library("scan")[1] or ""
    assert "error: " in reason
    assert "nonsense" in reason
    assert "\n" not in reason
    monkeypatch.setattr(building, "_build", lambda: pytest.fail("built again"))
    assert building.load_library("scan")[1] == reason
    assert not list((build_folder / "efficient_attn").iterdir())
    assert capfd.readouterr() == ("", "")


def _process(folder: Path, source: str, **variables: str) -> subprocess.Popen[str]:
    """Start a process that builds kernels in this folder."""
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(folder), "OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(
        [sys.executable, "-c", source], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@needs_cpp
@pytest.mark.sampled(6)
def test_concurrent_builds_succeed_and_are_reused(tmp_path: Path) -> None:
    decode_step = """
import torch, efficient_attn as ea
q = torch.randn(1, 1, 40, 8)
ea.create("full:backend=cpp")(q[:, :, :1], q, q)
"""
    for process in [_process(tmp_path, decode_step) for _ in range(2)]:
        assert (*process.communicate(timeout=120), process.returncode) == ("", "", 0)
    libraries = sorted((tmp_path / "efficient_attn").iterdir())
    assert [file.name.split("_")[0] for file in libraries] == ["decode"]  # and no temporary files
    written = [file.stat().st_mtime_ns for file in libraries]
    no_builds = "import torch.utils.cpp_extension as c; c.load = None\n"
    process = _process(tmp_path, no_builds + decode_step)
    assert (*process.communicate(timeout=120), process.returncode) == ("", "", 0)
    assert [file.stat().st_mtime_ns for file in libraries] == written


def test_default_backends_build_nothing(tmp_path: Path) -> None:
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
