"""Which published runs newer ones of their kind replace."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report.gather import gather
from efficient_attn.report.replaced_runs import PublishedRun, find_replaced
from efficient_attn.results.rows import Record

RESULTS = Path(__file__).parents[3] / "results"
ZEN4, ZEN5 = "AMD-Zen4-2c-24GiB", "AMD-Zen5-2c-24GiB"
OLD, NEW = "2026-01-02T03:04:05+00:00", "2026-01-03T03:04:05+00:00"


def read(folder: Path, *, machine: str, records: Iterable[Record] | None = None, **about: Any) -> PublishedRun:
    made = runs.speed(lengths=(512, 1024), machine=f"{machine}#abc123") if records is None else records
    return PublishedRun.of(folder.name, gather([runs.write_run(folder, made, runs.about(machine, **about))]))


def replaced(tmp_path: Path, older: dict[str, Any], newer: dict[str, Any]) -> bool:
    """Whether the second run replaces the first one; the first never replaces the second."""
    first = read(tmp_path / "first", **{"machine": ZEN4, "protocol": 5, "started": OLD, "command": []} | older)
    second = read(tmp_path / "second", **{"machine": ZEN4, "protocol": 5, "started": NEW, "command": []} | newer)
    found = find_replaced([first, second])
    assert found in ({}, {"first": ("second",)})
    return bool(found)


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        ({}, {}, True),
        ({}, {"machine": ZEN5}, False),
        ({}, {"protocol": 3}, False),
        ({}, {"suite": {"name": "decode"}}, False),
        ({}, {"allocator": {"left alone": "GLIBC_TUNABLES set"}}, False),
        ({}, {"trial": ["--quick"]}, False),
        ({"trial": ["--heads 64"]}, {}, False),
        ({"trial": ["--heads 64"]}, {"trial": ["--heads 64"]}, True),
        ({"protocol": 3}, {"machine": ZEN5}, True),
        ({"protocol": 3}, {"machine": ZEN5, "protocol": 4}, True),
        ({"protocol": 2}, {"machine": ZEN5, "protocol": 3}, False),
        ({"protocol": 2}, {"protocol": 3}, True),
        ({"protocol": 3}, {"machine": ZEN5, "trial": ["--dtype float32"]}, True),
        ({"protocol": 3, "trial": ["--part x"]}, {"machine": ZEN5}, False),
        ({"protocol": 4}, {"machine": ZEN5, "protocol": 5}, False),
    ],
)
def test_which_run_replaces_which(older: dict[str, Any], newer: dict[str, Any], expected: bool, tmp_path: Path) -> None:
    assert replaced(tmp_path, older, newer) is expected


def test_every_mechanism_with_a_result_is_tried_again(tmp_path: Path) -> None:
    machine = f"{ZEN4}#abc123"
    all_records = list(runs.speed(lengths=(512, 1024), machine=machine))
    fewer = [record for record in all_records if record.row.variant != "linear"]
    longer = list(runs.speed(lengths=(2048, 4096, 8192), machine=machine))
    assert not replaced(tmp_path / "fewer", {}, {"records": fewer})
    assert replaced(tmp_path / "longer", {}, {"records": longer})
    assert not replaced(tmp_path / "one length", {}, {"records": longer[:4]})
    for name, status, expected in (("stopped", "interrupted", False), ("slow", "timeout", True)):
        longer[-1].row.status = longer[-5].row.status = longer[-9].row.status = status
        assert replaced(tmp_path / name, {}, {"records": longer}) is expected


def test_no_published_run_of_this_repository_is_replaced() -> None:
    """Otherwise remove it (git rm -r) and update the pages that link to it."""
    folders = sorted(path.parent for path in RESULTS.glob("*/run.json"))
    assert folders
    assert find_replaced(PublishedRun.of(folder.name, gather([folder])) for folder in folders) == {}
