"""The trial that shows what `compare` reports prints a line for a pair of runs."""

from __future__ import annotations

import re
from pathlib import Path

import compare_cases
import numpy as np
import pytest
from compare_runs import failed, measured, write


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base", measured(np.random.default_rng(1)))


@pytest.mark.parametrize(("factor", "kind", "status"), [(1.0, "same", "0"), (1.2, "slower", "1")])
def test_a_slowdown_is_shown_with_its_interval(
    factor: float, kind: str, status: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = write(tmp_path / "new", measured(np.random.default_rng(2), factors={"linear": factor}))
    monkeypatch.setattr(compare_cases, "SLOWED", "/linear/")
    name, verdicts, slowed, bound, code = compare_cases.describe_pair(compare_cases.Pair("a run", (base, new)))
    assert (name, code) == ("a run", status)
    assert re.search(rf"[3-6] {kind}", verdicts)
    found = re.findall(rf"{kind}: ([\d.]+)x \(([\d.]+)-([\d.]+)\)", slowed)
    assert len(found) == 3
    assert all(float(low) <= 1 / factor <= float(high) for _, low, high in found)
    assert (factor - 1) * 100 < float(re.fullmatch(r"([\d.]+)%", bound)[1]) < (factor - 1) * 100 + 9  # type: ignore[index]


def test_missing_failed_and_refused_cases_are_shown(base: Path, tmp_path: Path) -> None:
    records = measured(np.random.default_rng(2))
    fewer = write(tmp_path / "fewer", [*records[:4], failed("full", 256)])
    cells = compare_cases.describe_pair(compare_cases.Pair("fewer", (base, fewer)))
    assert "1 broken" in cells[1]
    assert "1 only in base" in cells[1]
    assert cells[-1] == "1"
    processors = compare_cases.RESULTS / "promises_zen4", compare_cases.RESULTS / "promises_xeon"
    refused = compare_cases.describe_pair(compare_cases.Pair("other", processors))
    assert refused == ["other", "refused: different machines", "-", "-", "2"]


def test_the_schema_of_published_and_new_rows_is_read(base: Path) -> None:
    assert compare_cases.read_schema(compare_cases.OLDER) == 8
    assert compare_cases.read_schema(base) >= 9
