"""The wheel: its contents, and that it works outside of the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from made_once import make_once
from packaging.requirements import Requirement
from packaging.version import Version

from efficient_attn.kernels.native import building, compiler

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]


def _run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_once(tmp_path_factory, "wheel", _build)


def _build(out: Path) -> Path:
    """The wheel that tox built and installed, or one built here, which compiles all libraries."""
    packages = os.environ.get("TOX_PACKAGE", "").split(os.pathsep)
    if of_tox := [Path(name) for name in packages if name.endswith(".whl") and "editable" not in name]:
        (path,) = of_tox
        return path
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(CHECKOUT), cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed by pip into a new folder, without dependencies."""
    target = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check")
    _run(*pip, "--target", str(target), str(wheel), cwd=target)
    return target


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


@pytest.mark.sampled(6)
def test_suites_and_data_are_inside_the_package(wheel: Path) -> None:
    names = _names(wheel)
    expected = {p.relative_to(CHECKOUT).as_posix() for p in (CHECKOUT / "suites").rglob("*.toml")}
    assert not [name for name in names if "trials" in name or "planted" in name]
    expected |= {"suites/data/minilm.npz", "suites/data/minilm_text.LICENSE"}
    assert "suites/quickstart.toml" in expected
    assert {f"efficient_attn/{name}" for name in expected} <= names


def test_large_activations_stay_in_the_repository(wheel: Path) -> None:
    assert (CHECKOUT / "suites" / "data" / "smollm2.npz").is_file()
    assert not [name for name in _names(wheel) if "smollm2" in name]
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert settings["exclude"] == ["/suites/data/smollm2.npz", "/suites/trials"]  # from the wheel and the sdist


@pytest.mark.sampled(6)
def test_cases_without_their_activations_are_skipped(installed: Path, tmp_path: Path) -> None:
    found = _command(installed, tmp_path, "run", "fidelity_long", "--quick", "--variant", "full", "--out", "out")
    assert found["statuses"].keys() == {"ok", "skipped"}  # minilm is installed
    rows = (tmp_path / "out" / "rows.jsonl").read_text()
    for length, file in ((2048, "smollm2.npz"), (8192, "smollm2_8192.npz")):
        options = f"--model smollm2 --layers 5,20 --seq-len {length} --out {file}"
        assert f"python -m efficient_attn.integrations.capture {options}" in rows


def test_the_wheel_installs_one_package_without_caches(wheel: Path) -> None:
    packages = {name.split("/")[0] for name in _names(wheel)}
    assert {t for t in packages if not t.endswith(".dist-info")} == {"efficient_attn"}
    assert not [n for n in _names(wheel) if "__pycache__" in n or n.endswith((".pyc", ".tmp"))]


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    package = CHECKOUT / "efficient_attn"
    files = {p for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert {".py", ".cpp", ".h"} <= {p.suffix for p in files}
    with zipfile.ZipFile(wheel) as archive:
        for path in files:
            assert archive.read(f"efficient_attn/{path.relative_to(package).as_posix()}") == path.read_bytes(), path


@pytest.mark.skipif(shutil.which(os.environ.get("CXX") or "c++") is None, reason="no C++ compiler")
def test_the_wheel_has_kernels_for_each_class_of_processors(wheel: Path, installed: Path, tmp_path: Path) -> None:
    built = {name for name in _names(wheel) if name.endswith(".so")}
    expected = {compiler.library_name(n, c) for n in compiler.LIBRARIES for c in compiler.list_classes()}
    assert {Path(name).name for name in built} == expected
    assert f"-py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}" in wheel.name
    # they are found and run without a compiler, a writable home, or another build
    code = (
        "import torch, efficient_attn as ea; from efficient_attn.kernels.native import building\n"
        "q = torch.randn(1, 2, 4096, 16); ea.create('gqa', dims=ea.Dims(heads=2))(q[:, :, :1], q[:, :1], q[:, :1])\n"
        "print(building.locate_libraries()['decode'])"
    )
    variables = {
        "PYTHONPATH": str(installed),
        "CXX": "none",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        building.VARIABLE: "on",
    }
    found = _run(sys.executable, "-c", code, cwd=tmp_path, **variables).stdout.strip()
    assert found == str(installed / "efficient_attn/kernels/native/built")
    assert not (tmp_path / "cache").exists()


def test_the_metadata_has_the_license_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        text = {
            name.rpartition(".dist-info/")[2]: file.read(name).decode() for name in _names(wheel) if ".dist-" in name
        }
    assert text["licenses/LICENSE"] == (CHECKOUT / "LICENSE").read_text()
    assert "License-Expression: Apache-2.0" in text["METADATA"]
    assert "efficient-attn = efficient_attn.cli:main" in text["entry_points.txt"]


def _command(installed: Path, cwd: Path, *arguments: str) -> Any:
    command = (sys.executable, "-m", "efficient_attn", *arguments, "--json")
    return json.loads(_run(*command, cwd=cwd, PYTHONPATH=str(installed)).stdout)


@pytest.mark.sampled(6)
def test_a_built_in_suite_is_planned_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = "import efficient_attn as ea; from efficient_attn import resources as s; "
    code += "print(ea.__file__, s.find_suites_folder(), sep='|')"
    found = _run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).stdout.strip().split("|")
    assert found == [str(installed / "efficient_attn" / "__init__.py"), str(installed / "efficient_attn" / "suites")]
    cases = _command(installed, tmp_path, "plan", "quickstart")
    assert len({case["case_key"] for case in cases}) == len(cases) > 40


@pytest.mark.sampled(12)
def test_a_built_in_suite_runs_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    options = ("--quick", "--seq-len", "64", "--variant", "full", "--out", "out")
    found = _command(installed, tmp_path, "run", "quickstart", *options)
    assert found["statuses"].keys() == {"ok"}
    page = tmp_path / found["page"]
    assert page.is_file()
    assert "<html" in page.read_text(encoding="utf-8")
    (session,) = json.loads((tmp_path / "out" / "run.json").read_text())["sessions"]
    assert session["environment"]["git"] is None  # not run from a checkout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


@pytest.mark.sampled(6)
def test_the_conformance_tests_work_without_the_repository(installed: Path, tmp_path: Path) -> None:
    found = _command(installed, tmp_path, "check", "sliding_window:window=8")
    (outcomes,) = found.values()
    assert {outcome["status"] for outcome in outcomes} <= {"passed", "skipped", "not_claimed"}
    assert len(outcomes) > 40


def test_the_import_error_names_the_new_location_of_planted_bugs() -> None:
    with pytest.raises(ImportError, match=r"in planted_bugs, in tests/helpers of the repository; version 0\.3"):
        from efficient_attn.testing import kill_matrix  # noqa: F401  # pyright: ignore


def test_the_oldest_tested_versions_are_those_that_are_allowed() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    allowed = [Requirement(text) for text in (*project["dependencies"], *extras["test"], *extras["data"])]
    lowest = {r.name: min(Version(clause.version) for clause in r.specifier) for r in allowed}
    lines = (CHECKOUT / "tests" / "oldest.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {r.name for r in map(Requirement, project["dependencies"])} <= pins.keys()
    assert pins.pop("torch") in (CHECKOUT / "constraints.txt").read_text(), "older wheels need CUDA"
    for name, pin in pins.items():
        release = lowest[name].release
        # of scipy there is no 1.11.0
        assert Version(pin).release[: len(release)] == release, f"{name} {pin} is not the oldest allowed"
