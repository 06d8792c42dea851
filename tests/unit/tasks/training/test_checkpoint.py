"""Checkpoints: written atomically, and read only if they are complete and belong to the same setup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from efficient_attn.results import durable
from efficient_attn.tasks.training.checkpoint import Progress, flatten, read, restore, write

TENSORS = {"b": torch.arange(6.0).reshape(2, 3).T, "a": torch.tensor(3.0), "none": torch.zeros(0, 2)}
PROGRESS = Progress(9, 4, 1.5, [(2, 0.1), (4, 1 / 3)], [(2, 0.5), (4, 1.0)], [2.0, 1 / 7], "solved")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "folder" / "one", TENSORS, PROGRESS, "mine")
    return tmp_path / "folder" / "one"


def test_tensors_and_progress_are_restored(path: Path) -> None:
    restored = read(path, "mine")
    assert restored is not None
    assert restored[1] == PROGRESS
    assert restored[0].keys() == TENSORS.keys()
    assert all(torch.equal(restored[0][name], x) for name, x in TENSORS.items())


def test_writing_leaves_no_other_files(path: Path) -> None:
    write(path, TENSORS, Progress(3), "mine")
    assert [p.name for p in path.parent.iterdir()] == ["one"]
    assert (read(path, "mine") or ({}, None))[1] == Progress(3)


def test_interrupted_writes_keep_the_previous_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(path, TENSORS, Progress(3), "mine")
    assert (read(path, "mine") or ({}, None))[1] == PROGRESS


def test_missing_checkpoints_are_read_as_none(path: Path) -> None:
    assert read(path.parent / "other", "mine") is None
    assert read(path.parent, "mine") is None


def test_checkpoints_of_other_setups_are_ignored(path: Path) -> None:
    assert read(path, "another") is None


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_truncated_checkpoints_are_ignored(share: float, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert read(path, "mine") is None


def test_changed_bytes_are_detected_or_harmless(path: Path) -> None:
    data = path.read_bytes()
    for position in range(8, len(data), 5):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        restored = read(path, "mine")
        if restored is not None:  # a change of padding, for example
            assert restored[1] == PROGRESS
            assert all(torch.equal(restored[0][name], x) for name, x in TENSORS.items())


def test_other_files_and_metadata_are_ignored(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    for changes in (
        {"kind": "efficient-attn training 0"},
        {"progress": "{}"},
        {"progress": "no JSON"},
        {"progress": json.dumps({"steps": 1, "losses": [], "scores": [], "later": 1})},
        {"sum": ""},
    ):
        save_file({"a": torch.tensor(3.0)}, path, metadata | changes)
        assert read(path, "mine") is None
    save_file({"a": torch.tensor(3.0)}, path)
    assert read(path, "mine") is None
    path.write_text("a text")
    assert read(path, "mine") is None


def test_restored_tensors_do_not_depend_on_the_file(path: Path) -> None:
    restored = read(path, "mine")
    assert restored is not None
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(restored[0]["b"], TENSORS["b"])


# -- models ----------------------------------------------------------------------------------------------------------


def _train(model: nn.Module, steps: int) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.stack([p.square().sum() for p in model.parameters()]).sum().backward()
        optimizer.step()
    return optimizer


class Nested(nn.Module):
    """Has parameters with nested names."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.ParameterDict({"weight": torch.ones(2), "other": torch.ones(3)})
        self.bias = nn.Parameter(torch.ones(1))


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_weights_and_optimizer_state_are_restored() -> None:
    model, other = Nested(), Nested()
    tensors = flatten(model, _train(model, 3))
    assert "optimizer.weight.other.exp_avg_sq" in tensors
    fresh = torch.optim.AdamW(other.parameters(), lr=0.1)
    assert restore(other, fresh, {name: x.clone() for name, x in tensors.items()})
    assert _same(flatten(other, fresh), tensors)
    assert float(fresh.state[other.bias]["step"]) == 3


def test_restoring_another_model_fails_without_changes() -> None:
    model, other = nn.Linear(2, 3), nn.Linear(3, 3)
    before = {name: x.clone() for name, x in other.state_dict().items()}
    fresh = torch.optim.AdamW(other.parameters())
    for wrong in (model, nn.Linear(3, 3).double(), nn.Linear(3, 3, bias=False)):
        assert not restore(other, fresh, flatten(wrong, _train(wrong, 1)))
        assert _same(other.state_dict(), before)
        assert not fresh.state
