"""Mechanisms from a file, a module, or another package's entry point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shell import TINY, run_fresh

MECHANISM = '''
import efficient_attn as ea

@ea.register("zz_mine", family="sparse")
class Mine(ea.SparseAttention):
    """Each query over the keys right beside it."""

    def __init__(self, *, reach: int = 1) -> None:
        super().__init__(ea.patterns.Band(-reach, reach))
'''
PLAIN = MECHANISM.replace('@ea.register("zz_mine", family="sparse")\n', "")
ENTRY = "[efficient_attn.variants]\nzz_mine = zz_module:Mine\n"


def _file(folder: Path) -> tuple[list[str], dict[str, str]]:
    (folder / "my_attn.py").write_text(MECHANISM)
    return ["--plugin", "my_attn.py"], {}


def _module(folder: Path) -> tuple[list[str], dict[str, str]]:
    package = folder / "site" / "zz_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "mine.py").write_text(MECHANISM)
    return ["--plugin", "zz_package.mine"], {"PYTHONPATH": str(folder / "site")}


def _installed(folder: Path, source: str) -> tuple[list[str], dict[str, str]]:
    info = folder / "site" / "zz_dist-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zz-dist\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY)
    (folder / "site" / "zz_module.py").write_text(source)
    return [], {"PYTHONPATH": str(folder / "site")}


WAYS: dict[str, Any] = {
    "file": _file,
    "module": _module,
    "entry point": lambda folder: _installed(folder, PLAIN),
    "entry point that also registers": lambda folder: _installed(folder, MECHANISM),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_plugin_is_listed_and_described(way: str, command: Any, tmp_path: Path) -> None:
    flags, variables = WAYS[way](tmp_path)
    if way == "entry point":  # that is all it takes: no torch yet
        listed = json.loads(command("list", "--json", *flags, **variables).out)
        assert "zz_mine" in [m["name"] for m in listed["mechanisms"]]
    described = command("info", "zz_mine:reach=3", "--json", *flags, **variables)
    assert json.loads(described.out)["options"] == {"reach": 3}, described.err


def test_a_plugin_runs_with_the_suites_mechanisms(command: Any, tmp_path: Path) -> None:
    flags, variables = WAYS["entry point"](tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    options = ("--seq-len", "8", "--variant", "full,zz_mine:reach=2", "--out", "out", "--json")
    done = command("run", "tiny.toml", *options, *flags, **variables)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["statuses"] == {"ok": 2}
    assert "zz_mine:reach=2" in (tmp_path / found["page"]).read_text()


@pytest.mark.parametrize(("variants", "warns"), [("full", True), ("full,zz_mine", False)])
def test_a_plugin_of_which_no_case_uses_a_mechanism_is_named(
    variants: str, warns: bool, command: Any, tmp_path: Path
) -> None:
    flags, _ = WAYS["file"](tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    done = command("run", "tiny.toml", "--seq-len", "8", "--variant", variants, "--out", "out", *flags)
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if "--plugin" in line]
    message = "no case uses zz_mine; to measure it, name it, as in --variant full,zz_mine"
    assert lines == [f"efficient-attn: --plugin my_attn.py: {message}"] * warns


def test_a_failing_entry_point_is_named_and_affects_nothing_else(command: Any, tmp_path: Path) -> None:
    _, variables = _installed(tmp_path, "raise ValueError('not today')\n")
    assert command("list", **variables).code == 0
    done = command("info", "zz_mine", **variables)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "zz_mine: the entry point zz_module:Mine failed: ValueError: not today" in done.err


def test_a_registered_name_is_refused(command: Any, tmp_path: Path) -> None:
    (tmp_path / "my_attn.py").write_text(MECHANISM.replace("zz_mine", "linear"))
    done = command("list", "--plugin", "my_attn.py")
    assert done.code == 2
    assert "the name 'linear' is already used" in done.err


def test_a_plugin_given_twice_is_loaded_once(command: Any, tmp_path: Path) -> None:
    flags, _ = _file(tmp_path)
    done = command("list", *flags, *flags)
    assert (done.code, done.err) == (0, "")
    assert done.out.count("zz_mine") == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("named_by", ["the command", "the suite"])
def test_a_plugin_that_replaces_statistics_and_has_no_mechanism_is_refused(named_by: str, tmp_path: Path) -> None:
    flags = ("--plugin", "mine.py") if named_by == "the command" else ()
    (tmp_path / "tiny.toml").write_text(TINY if flags else f'plugins = ["mine.py"]\n{TINY}')
    (tmp_path / "mine.py").write_text("from efficient_attn.results import stats\nstats.median = lambda values: 1e-9\n")
    done = run_fresh("run", "tiny.toml", *flags, "--seq-len", "8", "--out", "out", cwd=tmp_path)
    assert done.code == 2
    assert (
        "--plugin mine.py: when it was imported, it replaced efficient_attn.results.stats.median by its own" in done.err
    )
