"""Long Range Arena's files: valid ones are read, others are refused with the line number."""

from __future__ import annotations

from pathlib import Path

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.listops_files import read_rows

HEADER = "Source\tTarget\r\n"
GOOD = "( ( ( [MED 3 ) ( ( ( [SM 9 ) 8 ) ] ) ) ] )\t5\r\n"


def _write(folder: Path, content: str) -> str:
    (folder / "basic_val.tsv").write_text(content, newline="")
    return str(folder)


def test_rows_are_tokens_without_parentheses(tmp_path: Path) -> None:
    rows, labels = read_rows(_write(tmp_path, HEADER + GOOD + "[MIN 0 [MAX 1 2 ] ]\t0\r\n"), "validation")
    assert [row.tolist() for row in rows] == [[12, 3, 13, 9, 8, 14, 14], [10, 0, 11, 1, 2, 14, 14]]
    assert labels.tolist() == [5, 0]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("", 1, "header"),
        ("Source,Target\n", 1, "header"),
        (HEADER, 2, "ends after its header"),
        (HEADER + GOOD + "( ( ( [MED 3 ) ( ( ( [SM 9", 3, "cut off"),
        (HEADER + GOOD + GOOD[:-4] + "\r\n" + GOOD, 3, "no label"),
        (HEADER + GOOD[:-3], 2, "no label"),
        (HEADER + "[MIN 1 2 ]\t10\n", 2, "no label"),
        (HEADER + "[MIN 1 2 ]\tx\n", 2, "no label"),
        (HEADER + "[MIN 1 2 ]\t-1\n", 2, "no label"),
        (HEADER + "[MIN 1 2 ] ]\t1\n", 2, "brackets"),
        (HEADER + "1 2\t1\n", 2, "brackets"),
        (HEADER + "[MIN 1 12 ]\t1\n", 2, "unknown token"),
        (HEADER + "[FIRST 1 2 ]\t1\n", 2, "unknown token"),
        (HEADER + "[MIN a 2 ]\t1\n", 2, "unknown token"),
        (HEADER + "\t1\n", 2, "token"),
        (HEADER + "( )\t1\n", 2, "no token"),
    ],
)
def test_invalid_files_are_refused_with_the_line(content: str, line: int, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"basic_val\.tsv:{line}: .*{reason}"):
        read_rows(_write(tmp_path, content), "validation")


def test_a_folder_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"basic_val\.tsv: no such file"):
        read_rows(str(tmp_path), "validation")
