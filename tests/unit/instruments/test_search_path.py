"""Where new processes search modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attn.instruments.search_path import (
    PACKAGE,
    VARIABLES,
    make_search_path,
    read_search_path,
    set_variables,
)

CODE = "import copied, os; print(copied.__file__, os.__file__)"


def test_a_new_process_searches_where_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if this one searches its working folder, which is another one for the new process."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "copied.py").touch()
    (tmp_path / "there" / "os.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    command, environment = [sys.executable, "-c", CODE], os.environ | make_search_path()
    printed = subprocess.check_output(command, cwd=tmp_path / "there", env=environment, text=True)
    assert printed.split() == [str(tmp_path / "here" / "copied.py"), os.__file__]


def test_other_copies_of_the_package_are_searched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if their folder comes first in this process, which had imported its own before."""
    (tmp_path / "efficient_attn").mkdir()
    (tmp_path / "efficient_attn" / "__init__.py").write_text("raise RuntimeError('the other copy')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    code, environment = "import efficient_attn; print(efficient_attn.__path__[0])", os.environ | make_search_path()
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True)
    assert Path(printed.strip()).resolve() == PACKAGE


def test_variables_are_set_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "a")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = read_search_path()
    assert before == {"PYTHONPATH": "a", "PYTHONSAFEPATH": None}
    set_variables(dict.fromkeys(VARIABLES, "b"))
    assert read_search_path() == dict.fromkeys(VARIABLES, "b")
    set_variables(before)
    assert read_search_path() == before
