"""The site's folder: foreign files are not touched, and it always contains the old or the new site."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from efficient_attn.errors import UsageError
from efficient_attn.report.site import site_folder
from efficient_attn.report.site.site_folder import check_site, replace_site

OLD = {"index.html": b"old", "b/one.html": b"1"}
NEW = {"index.html": b"new"}


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("exchange", [True, False])
def test_the_new_site_replaces_the_whole_old_one(
    exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(site_folder, "_exchange", lambda *_: False)
    site = tmp_path / "deep" / "site"
    replace_site(site, OLD)
    assert _names(site) == {*OLD, "files.json"}
    replace_site(site, NEW)
    assert _names(site) == {*NEW, "files.json"}
    assert (site / "index.html").read_bytes() == b"new"
    assert list(site.parent.iterdir()) == [site]


@pytest.mark.parametrize("step", ["_write_files", "_replace_folder", "_exchange"])
def test_an_interrupt_leaves_the_old_site(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    replace_site(site, OLD)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(site_folder, step, fail)
    with pytest.raises(KeyboardInterrupt):
        replace_site(site, NEW)
    check_site(site)
    assert (site / "index.html").read_bytes() == b"old"


def test_a_full_disk_between_two_renames_restores_the_old_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    replace_site(site, OLD)
    rename = site_folder.os.rename

    def fail(one: Path, other: Path) -> None:
        if one.name == "site" and other == site:
            raise OSError(28, "No space left on device")
        rename(one, other)

    monkeypatch.setattr(site_folder, "_exchange", lambda *_: False)
    monkeypatch.setattr(site_folder.os, "rename", fail)
    with pytest.raises(UsageError, match="No space left"):
        replace_site(site, NEW)
    assert (site / "index.html").read_bytes() == b"old"


def test_an_interrupt_between_two_renames_restores_the_old_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    replace_site(site, OLD)
    rename = site_folder.os.rename

    def interrupt(one: Path, other: Path) -> None:
        rename(one, other)
        if one == site:
            raise KeyboardInterrupt

    monkeypatch.setattr(site_folder, "_exchange", lambda *_: False)
    monkeypatch.setattr(site_folder.os, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_site(site, NEW)
    assert (site / "index.html").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [site]


def test_a_work_folder_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter(["f" * 16, "0" * 16])
    monkeypatch.setattr(site_folder.secrets, "token_hex", lambda _: next(names))
    monkeypatch.setattr(site_folder, "_remove_leftovers", lambda _: None)
    swept, mkdir, held = tmp_path / f".site.{'f' * 16}.tmp", Path.mkdir, []

    def sweep(path: Path, *args: Any, **known: Any) -> None:
        mkdir(path, *args, **known)
        if path == swept and not held:
            held.append((swept / "lock").open("w"))
            fcntl.flock(held[0], fcntl.LOCK_EX)

    monkeypatch.setattr(Path, "mkdir", sweep)
    replace_site(tmp_path / "site", NEW)
    held[0].close()
    assert (tmp_path / "site" / "index.html").read_bytes() == b"new"
    assert {path.name for path in tmp_path.iterdir()} == {"site", swept.name}


def test_only_work_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    site = tmp_path / "site"
    dead, alive = (tmp_path / f".site.{letter * 16}.tmp" for letter in "ab")
    for folder in (dead, alive):
        (folder / "site").mkdir(parents=True)
        (folder / "lock").touch()
    (tmp_path / ".site.other.tmp").mkdir()
    bare, foreign = (tmp_path / f".site.{letter * 16}.tmp" for letter in "de")
    bare.mkdir()  # killed before it was locked, or after its lock was gone
    foreign.mkdir()
    (foreign / "mine").touch()
    lock = FileLock(alive / "lock")
    with lock:
        replace_site(site, NEW)
    assert not dead.exists()
    assert not bare.exists()
    assert alive.exists()
    assert (foreign / "mine").exists()
    assert (tmp_path / ".site.other.tmp").exists()


def test_a_site_left_in_a_work_folder_is_restored(tmp_path: Path) -> None:
    site, left = tmp_path / "site", tmp_path / f".site.{'c' * 16}.tmp"
    replace_site(left / "old", OLD)
    (left / "lock").touch()
    site_folder._remove_leftovers(site)
    assert (site / "index.html").read_bytes() == b"old"
    assert not left.exists()


def _foreign(site: Path) -> None:
    (site / "mine.txt").write_text("mine")


def _changed(site: Path) -> None:
    (site / "index.html").write_text("mine")


def _linked(site: Path) -> None:
    (site / "link").symlink_to(site.parent)


def _damaged(site: Path) -> None:
    (site / "files.json").write_text("Made by efficient-attn {")


def _unlisted(site: Path) -> None:
    (site / "files.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_foreign, "holds mine.txt, not written by efficient-attn"),
        (_changed, "holds index.html, changed since it was published"),
        (_linked, "holds link, not written by"),
        (_damaged, "damaged"),
        (_unlisted, "holds files.json, not written by"),
    ],
)
def test_foreign_files_are_refused_and_not_changed(spoil, message: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    replace_site(site, OLD)
    spoil(site)
    before = {name: (site / name).read_bytes() for name in _names(site) if not (site / name).is_symlink()}
    with pytest.raises(UsageError, match=message):
        replace_site(site, NEW)
    assert all((site / name).read_bytes() == data for name, data in before.items())


def test_links_files_and_run_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "to")
    (tmp_path / "file").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rows.jsonl").touch()
    for name, message in (("link", "a link"), ("file", "a file"), ("run", "holds rows.jsonl")):
        with pytest.raises(UsageError, match=message):
            replace_site(tmp_path / name, NEW)
    assert list((tmp_path / "to").iterdir()) == []


def test_names_outside_of_the_site_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside"):
        replace_site(tmp_path / "site", {"../../evil.html": b"x"})
    assert list(tmp_path.iterdir()) == []
