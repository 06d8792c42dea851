"""Texts: documents of the built-in text, files, and the order of documents."""

from __future__ import annotations

import lzma
from itertools import pairwise
from pathlib import Path

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.integrations.texts import Text


def test_the_built_in_text_contains_every_address() -> None:
    text = Text.find("sotu")
    assert len(text.documents) == 233
    assert sum(map(len, text.documents)) > 10_000_000
    assert text.documents[0].startswith("Fellow-Citizens of the Senate")
    assert text.label.startswith("sotu@")


def test_a_file_is_a_document_or_several(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("one document\nof two lines")
    assert Text.find(str(path)).documents == ("one document\nof two lines",)
    packed = tmp_path / "mine.txt.xz"
    packed.write_bytes(lzma.compress(b"\fa name\nfirst\n\fanother\nsecond\n"))
    assert Text.find(str(packed)).documents == ("first\n", "second\n")
    assert Text.find(str(path)).label != Text.find(str(packed)).label


def test_invalid_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        Text.find(str(tmp_path / "absent.txt"))
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "a.txt.xz").write_bytes(b"not packed")
    for name in ("a.txt", "a.txt.xz"):
        with pytest.raises(UsageError, match="UTF-8"):
            Text.find(str(tmp_path / name))


@pytest.mark.parametrize("count", [1, 2, 7, 233])
def test_documents_are_spread(count: int) -> None:
    order = Text("any", tuple(map(str, range(count)))).list_spread_numbers()
    assert sorted(order) == list(range(count))
    if count > 20:
        assert all(abs(a - b) > count / 5 for a, b in pairwise(order))
