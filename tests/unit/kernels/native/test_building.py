"""Where C++ kernels are found, when they are built, and the reasons where there are none."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

import efficient_attn as ea
from efficient_attn.kernels.native import building

pytestmark = pytest.mark.slow

REASON = building.load_library("scan", build=True)[1]
needs_cpp = pytest.mark.skipif(REASON is not None, reason=REASON or "")

DECODE_STEP = """
import torch, efficient_attn as ea
from efficient_attn.kernels.autotuning import autotuner
q = torch.randn(1, 1, 4096, 16)
ea.create("full")(q[:, :, :1], q, q)
print(autotuner.list_choices(), end="")
"""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder for builds, with no library loaded yet, and none in the package, as wheels have them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(building, "PACKAGED", tmp_path / "none")
    monkeypatch.setattr(building, "_loaded", {})
    monkeypatch.setattr(building, "_failures", {})
    return tmp_path / "efficient-attn" / "native"


def test_missing_compiler_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ea.UnsupportedError, match=r"'cpp' is not available: .* no C\+\+ compiler \(no-such-compiler\)"):
        ea.create("linear:backend=cpp")
    assert ea.create("linear").backend == "chunked"


@needs_cpp
def test_a_mechanism_without_its_library_does_not_run_torch(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after unpickling in another process or on another machine."""
    mechanisms = [ea.create(f"{name}:backend=cpp") for name in ("linear", "sliding_window")]
    request.getfixturevalue("cache")
    monkeypatch.setenv("CXX", "no-such-compiler")
    q = torch.randn(1, 2, 40, 16)
    for attn in mechanisms:
        with pytest.raises(ea.UnsupportedError, match=r"no kernel in C\+\+: .* no C\+\+ compiler"):
            attn(q, q, q)


def test_a_failed_build_is_not_tried_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = building.why_no_native("scan")
    monkeypatch.setattr(building, "compile_library", lambda *_: pytest.fail("built again"))
    assert building.why_no_native("scan") == reason


@needs_cpp
@pytest.mark.sampled(3)
def test_a_damaged_library_is_not_loaded_but_built_again(cache: Path) -> None:
    assert building.why_no_native("scan") is None
    (library,) = cache.iterdir()
    content = library.read_bytes()
    for damaged in (b"", content[:5000], content[:-1], content[:5000] + b"x" + content[5001:]):
        library.unlink()  # as loaded files must not change
        library.write_bytes(damaged)
        library.chmod(0o755)  # whatever the umask
        building._loaded.clear()
        assert building.load_library("scan") == (None, f"{library} is damaged")
    assert building.why_no_native("scan") is None
    assert library.read_bytes() == content


def _expose(folder: Path, kind: str) -> None:
    if kind == "a folder that all can write to":
        folder.chmod(0o777)
    elif kind == "a folder that the group can write to":
        folder.chmod(0o770)
    elif kind == "a file that all can write to":
        next(folder.iterdir()).chmod(0o666)
    elif kind == "a folder behind a link":
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to(folder.with_name("elsewhere"))
    else:
        os.chown(folder if "folder" in kind else next(folder.iterdir()), 12345, 12345)


EXPOSED = {
    "a folder that all can write to": "can be written by others",
    "a folder that the group can write to": "can be written by others",
    "a file that all can write to": "can be written by others",
    "a folder behind a link": "is a link",
    "a folder of another user": "belongs to another user",
    "a file of another user": "belongs to another user",
}


@needs_cpp
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", EXPOSED)
def test_a_library_that_others_could_have_written_is_not_loaded(kind: str, cache: Path) -> None:
    if "another user" in kind and os.getuid():
        pytest.skip("only root can give files away")
    assert building.why_no_native("scan") is None
    assert cache.stat().st_mode & 0o777 == 0o700
    _expose(cache, kind)
    building._loaded.clear()
    library, reason = building.load_library("scan")
    assert library is None
    assert f"{EXPOSED[kind]}: remove it, or set XDG_CACHE_HOME" in (reason or "")
    if "folder" in kind:  # where nothing is built either
        assert EXPOSED[kind] in (building.why_no_native("scan") or "")


def test_a_home_that_cannot_be_written_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache.parents[1] / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parents[1] / "file"))
    reason = building.why_no_native("scan") or ""
    assert reason.startswith("it could not be built: ")
    if REASON is None:
        assert f"it cannot be stored in {building.cache_folder()}: Not a directory" in reason


def test_libraries_of_other_processors_are_not_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    for processors in building.list_classes():
        if processors != building.find_class():
            (cache / building.library_name("scan", processors)).touch()
    assert building.load_library("scan") == (None, "it is not built; efficient-attn doctor and runs build it")


def _start(folder: Path, source: str, **variables: str) -> subprocess.Popen[str]:
    """Start a process that has its cache in this folder."""
    environment = (
        os.environ | {"XDG_CACHE_HOME": str(folder), "OMP_NUM_THREADS": "1", building.VARIABLE: "on"} | variables
    )
    return subprocess.Popen(
        [sys.executable, "-c", source], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@needs_cpp
@pytest.mark.sampled(6)
def test_concurrent_builds_succeed_and_are_reused(tmp_path: Path) -> None:
    request = DECODE_STEP.replace('"full"', '"full:backend=cpp"')
    for process in [_start(tmp_path, request) for _ in range(2)]:
        assert (*process.communicate(timeout=120), process.returncode) == ("", "", 0)
    libraries = list((tmp_path / "efficient-attn" / "native").iterdir())
    assert [file.name.split("-")[0] for file in libraries] == ["decode"]  # and no temporary files
    # later processes use it, also without asking for it
    process = _start(tmp_path, DECODE_STEP, CXX="no-such-compiler")
    assert (*process.communicate(timeout=120), process.returncode) == ("decode=cpp", "", 0)


def test_a_call_of_a_library_user_builds_nothing(tmp_path: Path) -> None:
    process = _start(tmp_path, DECODE_STEP)
    out, err = process.communicate(timeout=120)
    assert (out.startswith("decode="), "cpp" in out, err, process.returncode) == (True, False, "", 0)
    assert not list(tmp_path.iterdir())


def test_a_worker_builds_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        parent = executor.submit(multiprocessing.parent_process).result(timeout=120)
    assert parent is not None  # by which a worker knows what it is
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    assert building.why_no_native("scan") == "it is not built; efficient-attn doctor and runs build it"
    assert not cache.exists()
