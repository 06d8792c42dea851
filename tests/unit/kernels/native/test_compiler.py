"""The compiler's errors and time limit, and libraries for every class of processors."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import pytest

from efficient_attn.kernels.native import building, compiler

REASON = building.load_library("scan", build=True)[1]
needs_cpp = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@needs_cpp
@pytest.mark.slow
@pytest.mark.sampled(9)
@pytest.mark.parametrize("processors", compiler.list_classes())
@pytest.mark.parametrize("name", compiler.LIBRARIES)
def test_every_class_compiles_and_names_its_files(name: str, processors: str, tmp_path: Path) -> None:
    library = compiler.compile_library(name, processors, tmp_path)
    assert list(tmp_path.iterdir()) == [library]
    assert library.name == compiler.library_name(name, processors)
    assert compiler.is_intact(library)
    ctypes.CDLL(str(library))


def test_every_header_is_part_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that was built from other headers is not loaded."""
    monkeypatch.setattr(compiler, "FOLDER", tmp_path)
    names = []
    for file in ("scan.cpp", "registers.h", "features.h"):
        (tmp_path / file).write_text(f"// {file}\n")
        names.append(compiler.library_name("scan", "DEFAULT"))
    assert len(set(names)) == 3


def test_an_unknown_class_is_the_default_one() -> None:
    assert compiler.library_name("scan", "SVE256") == compiler.library_name("scan", "DEFAULT")


@needs_cpp
def test_compiler_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    (tmp_path / "scan.cpp").write_text("int x = nonsense;\nint y = nonsense;\n")
    monkeypatch.setattr(compiler, "FOLDER", tmp_path)
    with pytest.raises(compiler.CompilerError, match=r"^c\+\+ failed: .*scan.cpp:1:9: error: .*nonsense.*$") as caught:
        compiler.compile_library("scan", "DEFAULT", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "out").iterdir())
    assert capfd.readouterr() == ("", "")


def test_a_compiler_that_hangs_is_stopped_with_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, child = tmp_path / "hanging", tmp_path / "child"
    script.write_text(f'#!/bin/sh\nsleep 60 &\necho $! > "{child}"\nwait\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr(compiler, "LIMIT_S", 1.0)
    with pytest.raises(compiler.CompilerError, match=r"the compiler did not finish in 1 s \(.*hanging\)"):
        compiler.compile_library("scan", "DEFAULT", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    deadline = time.monotonic() + 10
    while _is_running(int(child.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(int(child.read_text()))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_compiler_without_output_reports_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(compiler.CompilerError, match=r"^false failed: status 1$"):
        compiler.compile_library("scan", "DEFAULT", tmp_path)
