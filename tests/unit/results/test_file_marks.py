"""Which files may be overwritten: absent and generated ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.results import file_marks
from efficient_attn.results.rows import COLUMNS, Record, Row
from efficient_attn.results.store import RunWriter

OURS = {
    "page": f"<footer>{file_marks.MARK}.</footer>",
    "table": ",".join(COLUMNS) + "\n",
    "export for pytest-benchmark": json.dumps({"commit_info": {"project": "efficient-attn"}}, indent=2),
    "export for github-action": json.dumps([{"name": "a", "unit": "ms", "value": 1.0, "extra": ""}], indent=2),
    "text": file_marks.add_mark("1 same\n", "text"),
    "markdown": file_marks.add_mark("**1 same**\n", "markdown"),
    "json": file_marks.add_mark(json.dumps({"schema": 1}, indent=2) + "\n", "json"),
}
THEIRS = {
    "notes": "we used efficient-attn\n",
    "nothing": "",
    "a table": "a,b\n1,2\n",
    "a list": '[{"name": "x"}]',
    "a document": "# Title\n\nwords\n",
    "a package's settings": '{"name": "efficient-attn"}',
}


@pytest.mark.parametrize("what", OURS)
def test_generated_files_are_replaced(what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(OURS[what])
    file_marks.write_derived(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("what", THEIRS)
def test_other_files_are_not_replaced(what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(THEIRS[what])
    with pytest.raises(UsageError, match=r"file: exists, and was not written by efficient-attn; move it away"):
        file_marks.write_derived(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_text() == THEIRS[what]


def test_links_and_folders_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text(OURS["page"])
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    (tmp_path / "folder").mkdir()
    for name, what in (("link", "a link"), ("dangling", "a link"), ("folder", "a folder")):
        with pytest.raises(UsageError, match=f"{name}: cannot be written: {what}; name another file"):
            file_marks.write_derived(tmp_path / name, b"new")
    assert (tmp_path / "ours").read_text() == OURS["page"]
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    "name", ["rows.jsonl", "rows-2.jsonl", "rows.jsonl.gz", "run.json", "quarantine.jsonl", "lock", "lock.json"]
)
def test_no_file_of_a_run_is_written_over_or_added(name: str, tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run") as writer:
        writer.write(Record(Row(case_key="x")))
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(UsageError, match=f"{name}: one of a run's own files"):
        file_marks.write_derived(tmp_path / "run" / name, b"new")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    file_marks.write_derived(tmp_path / name, b"new")  # elsewhere it is a name like any other


def test_marked_json_is_valid() -> None:
    value = {"schema": 1, "cases": []}
    assert json.loads(file_marks.add_mark(json.dumps(value, indent=2) + "\n", "json")) == value | {
        "note": file_marks.MARK
    }
