"""A kill while a site is published: whoever looks meets a whole one, old or new, and the next publish cleans up."""

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
    """What a publisher has written beside the site so far."""
    return [name for work in out.glob(".site.*.tmp") for _, _, names in os.walk(work / "site") for name in names]


# the moments at which a publisher is met, each from a number between 0 and 1: while it reads and renders, while it
# writes, and once all is written, when it swaps and cleans up
def _is_reading(share: float, out: Path, begun: float) -> bool:
    return time.monotonic() - begun > 0.4 * share


def _is_writing(share: float, out: Path, begun: float) -> bool:
    return len(_list_written(out)) > 0.9 * FILES * share


def _is_swapping(share: float, out: Path, begun: float) -> bool:
    if "files.json" not in _list_written(out) and (out / "site" / "index.html").read_bytes() == b"old":
        return False
    time.sleep(0.004 * share)
    return True


Moment = Callable[[float, Path, float], bool]
MOMENTS: tuple[Moment, ...] = (_is_writing, _is_swapping, _is_reading)


def _kill(folder: Path, moment: Moment, share: float) -> int:
    """Publish, and kill at a moment: the exit code, that of success where the moment was missed."""
    pid, begun = start(*ARGUMENTS, cwd=folder), time.monotonic()
    while not moment(share, folder / "out", begun) and _lives(pid):
        assert (folder / "out" / "site" / "index.html").is_file(), "there is a site at any time"
        assert time.monotonic() - begun < LIMIT_S
        time.sleep(0.0003)
    os.kill(pid, signal.SIGKILL)
    return wait(pid)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.sampled(DRAWS)
@pytest.mark.parametrize("draw", range(DRAWS))
def test_a_kill_leaves_the_old_site_or_the_new_one_and_the_next_publish_no_litter(draw: int, tmp_path: Path) -> None:
    runs.write_run(tmp_path / "run", runs.speed(lengths=(512, 1024)))
    site, share = tmp_path / "out" / "site", random.Random(draw).random()
    moment = MOMENTS[draw % len(MOMENTS)]
    replace_site(site, OLD)
    old = _read(site)
    code = 0
    for _ in range(4):  # a busy machine may let a publisher end before it is met
        replace_site(site, OLD)
        code = _kill(tmp_path, moment, share)
        left = _read(site)
        check_site(site)  # each file is as the site itself says
        assert left == old or (left["index.html"] != b"old" and not set(OLD) - {"index.html"} & set(left))
        if code != 0:
            break
    assert code == -signal.SIGKILL, "no kill met it"
    done = run(*ARGUMENTS, cwd=tmp_path)
    assert done.code == 0, done.err
    new = _read(site)
    assert left in (old, new)
    assert len(new) > FILES * 0.9
    assert [path.name for path in site.parent.iterdir()] == ["site"], "no litter"
