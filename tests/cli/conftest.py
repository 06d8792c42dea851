"""Two real runs shared by tests, and the command in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import QUICK, TINY, Command, Finished, run, run_watched


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """``command("plan", "quickstart")`` in an empty folder; keywords are environment variables."""
    return lambda *arguments, **variables: run(*arguments, cwd=tmp_path, **variables)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A little of the quickstart suite, run as a program would."""
    cwd = tmp_path_factory.mktemp("finished")
    done = run("run", *QUICK, "--out", "out", cwd=cwd)
    assert done.code == 0, done.err
    return Finished(cwd / "out", done)


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The tiny suite (``tiny.toml`` beside the folder), run with a terminal on stderr."""
    cwd = tmp_path_factory.mktemp("watched")
    (cwd / "tiny.toml").write_text(TINY)
    done = run_watched("run", "tiny.toml", "--out", "out", "--resume", "--json", cwd=cwd)
    assert done.code == 0, done.err
    return Finished(cwd / "out", done)
