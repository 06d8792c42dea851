"""Durable writes in folders that others can write to: links are not followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from efficient_attn.results import durable

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.write_bytes(b"theirs")
    return path


def test_replacing_a_link_leaves_its_target_unchanged(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "file").symlink_to(outside)
    durable.replace(tmp_path / "file", b"ours")
    assert outside.read_bytes() == b"theirs"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"ours"


def test_a_prepared_temporary_name_is_not_written_through(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable.secrets, "token_hex", lambda _: "guessed")
    (tmp_path / ".file.guessed.tmp").symlink_to(outside)
    with pytest.raises(FileExistsError):
        durable.replace(tmp_path / "file", b"ours")
    assert outside.read_bytes() == b"theirs"
    assert not (tmp_path / "file").exists()


def test_temporary_names_differ_and_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, really = [], os.replace
    monkeypatch.setattr(durable.os, "replace", lambda a, b: (seen.append(Path(a).name), really(a, b)))
    for _ in range(2):
        durable.replace(tmp_path / "file", b"ours")
    assert len(set(seen)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_links_are_not_written_through(tmp_path: Path, outside: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(outside)
    for write in (durable.open_to_append, _open_itself):
        with pytest.raises(OSError, match="symbolic links"):
            write(link)
    assert outside.read_bytes() == b"theirs"


def _open_itself(path: Path) -> None:
    open(path, "w", opener=durable.open_nofollow).close()


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    durable.replace(tmp_path / "ours", b"")
    (tmp_path / "usual").write_bytes(b"")
    mode = stat.S_IMODE((tmp_path / "usual").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == mode
