"""The folder of built-in suites, in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from efficient_attn import resources
from efficient_attn.errors import UsageError


def test_built_in_suites_and_data_are_found() -> None:
    assert "quickstart" in resources.list_suite_names()
    assert resources.list_suite_names() == sorted(resources.list_suite_names())
    assert (resources.find_suites_folder() / "data" / "minilm.npz").is_file()


def _package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = folder / "efficient_attn"
    package.mkdir()
    monkeypatch.setattr(resources, "__file__", str(package / "shipped.py"))
    return package


def test_an_installed_package_reads_its_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = _package(tmp_path, monkeypatch)
    for folder, name in ((package / "suites", "inside"), (tmp_path / "suites", "outside")):
        folder.mkdir()
        (folder / f"{name}.toml").touch()
    assert resources.list_suite_names() == ["inside"]


def test_a_checkout_reads_its_top_level_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(tmp_path, monkeypatch)
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "outside.toml").touch()
    assert resources.list_suite_names() == ["outside"]


def test_every_suite_has_a_description() -> None:
    for name in resources.list_suite_names():
        assert len(resources.describe_suite(name)) > 20, name


def test_shapes_name_their_source_and_heads_fit() -> None:
    for shape in resources.list_model_shapes():
        assert shape.source
        assert shape.heads % (shape.kv_heads or shape.heads) == 0
        assert shape.head_dim > 0
    with pytest.raises(UsageError, match="unknown shape 'mistral'; did you mean 'mistral-7b'"):
        resources.find_model_shape("mistral")
