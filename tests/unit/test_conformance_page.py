"""The table of conformance: complete, correct, and with failures shown."""

from __future__ import annotations

from pathlib import Path

import conformance_matrix
import pytest
from conformance_matrix import GROUPS, Result
from markdown_tables import parse_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"


def test_the_page_has_every_implementation_and_every_group() -> None:
    rows = parse_table(PAGE.read_text(encoding="utf-8"))
    assert list(rows) == conformance_matrix.list_specs(), f"run: {conformance_matrix.COMMAND}"
    assert {tuple(row) for row in rows.values()} == {tuple(name.replace("_", " ") for name in GROUPS)}


@pytest.mark.slow
@pytest.mark.sampled(3)
def test_the_page_agrees_with_the_checks() -> None:
    rows = parse_table(PAGE.read_text(encoding="utf-8"))
    results = conformance_matrix.examine_all(["gla"])  # in its own process, as it registers all peers
    assert parse_table(conformance_matrix.make_table(results))["gla"] == rows["gla"]


def test_failures_and_refusals_are_listed() -> None:
    counts = dict.fromkeys(GROUPS, (0, 0, 0)) | {"padding": (7, 0, 0), "causality": (3, 0, 1)}
    results = {
        "good": Result({**counts, "causality": (4, 0, 0)}, [], []),
        "leaks": Result(counts, [], [("causality", "smallest failing\ninput: N=2 | M=2")]),
        "refuses": Result({**counts, "causality": (1, 3, 0)}, [("output", "N=5"), ("causality", "N=7")], []),
        "away": Result({}, [], [], "not installed"),
    }
    rows = parse_table(conformance_matrix.make_table(results))
    assert rows["good"]["causality"] == "4"
    assert rows["leaks"]["causality"] == "3, 1 **fail**"
    assert rows["refuses"]["causality"] == "1, 3 refused"
    assert rows["leaks"]["reference"] == rows["away"]["padding"] == "-"
    assert conformance_matrix.list_failures(results).splitlines() == [
        "- `leaks`, causality: smallest failing input: N=2 \\| M=2",
        "- `refuses` refuses calls of 2 checks, the first of output: N=5",
        "- `away` was not checked: not installed",
    ]
