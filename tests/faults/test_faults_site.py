"""Kills during `publish`: the site is always complete, old or new, and the next `publish` removes temporary files."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import report_runs as runs
from shell import run, start, wait

from efficient_attn.report.site.site_folder import check_site, replace_site

OLD = {"index.html": b"old", "b/one.html": b"1", "r/0/index.html": b"2"}
ARGUMENTS = ("publish", "run", "--site", "out/site")
LIMIT_S = 100
FILES = 150  # of the new site, about
DRAWS = 12


def _read(site: Path) -> dict[str, bytes]:
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def _list_written(out: Path) -> list[str]:
    """The files of the new site that a publisher has written so far."""
    return [name for work in out.glob(".site.*.tmp") for _, _, names in os.walk(work / "site") for name in names]


# The moment of a kill in three phases of `publish`, by a share between 0 and 1: while it reads and renders, while it
# writes, and while it exchanges the folders and cleans up.
def _is_reading(share: float, out: Path, start_s: float) -> bool:
    return time.monotonic() - start_s > 0.4 * share


def _is_writing(share: float, out: Path, start_s: float) -> bool:
    return len(_list_written(out)) > 0.9 * FILES * share


def _is_swapping(share: float, out: Path, start_s: float) -> bool:
    if "files.json" not in _list_written(out) and (out / "site" / "index.html").read_bytes() == b"old":
        return False
    time.sleep(0.004 * share)
    return True


Moment = Callable[[float, Path, float], bool]
MOMENTS: tuple[Moment, ...] = (_is_writing, _is_swapping, _is_reading)


def _kill(folder: Path, moment: Moment, share: float) -> int:
    """Publish, and kill the process at a moment. The exit code, which is 0 if the process ended before."""
    pid, start_s = start(*ARGUMENTS, cwd=folder), time.monotonic()
    while not moment(share, folder / "out", start_s) and _is_running(pid):
        assert (folder / "out" / "site" / "index.html").is_file(), "the site exists at any time"
        assert time.monotonic() - start_s < LIMIT_S
        time.sleep(0.0003)
    os.kill(pid, signal.SIGKILL)
    return wait(pid)


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.sampled(DRAWS)
@pytest.mark.parametrize("draw", range(DRAWS))
def test_a_killed_publish_leaves_the_old_or_the_new_site(draw: int, tmp_path: Path) -> None:
    runs.write_run(tmp_path / "run", runs.speed(lengths=(512, 1024)))
    site, share = tmp_path / "out" / "site", random.Random(draw).random()
    moment = MOMENTS[draw % len(MOMENTS)]
    replace_site(site, OLD)
    old = _read(site)
    code = 0
    for _ in range(4):  # on a busy machine the publisher may end before the moment is noticed
        replace_site(site, OLD)
        code = _kill(tmp_path, moment, share)
        left = _read(site)
        check_site(site)  # every file has its recorded checksum
        assert left == old or (left["index.html"] != b"old" and not set(OLD) - {"index.html"} & set(left))
        if code != 0:
            break
    assert code == -signal.SIGKILL, "every publisher ended before its kill"
    done = run(*ARGUMENTS, cwd=tmp_path)
    assert done.code == 0, done.err
    new = _read(site)
    assert left in (old, new)
    assert len(new) > FILES * 0.9
    assert [path.name for path in site.parent.iterdir()] == ["site"], "temporary files are left"
