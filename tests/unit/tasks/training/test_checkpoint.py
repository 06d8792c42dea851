"""Checkpoints: written atomically, and read only if they are complete and belong to the same setup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from efficient_attn.results import durable
from efficient_attn.tasks.training.checkpoint import Progress, restore, restore_model, write, write_model

PROGRESS = Progress(9, 4, 1.5, [(2, 0.1), (4, 1 / 3)], [(2, 0.5), (4, 1.0)], [2.0, 1 / 7], "solved")


class Nested(nn.Module):
    """Has parameters with nested names."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.ParameterDict({"weight": torch.ones(2), "other": torch.ones(3)})
        self.bias = nn.Parameter(torch.ones(1))


def _train(model: nn.Module, steps: int) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.stack([p.square().sum() for p in model.parameters()]).sum().backward()
        optimizer.step()
    return optimizer


TRAINED = Nested()
OPTIMIZER = _train(TRAINED, 3)


def _read(path: Path, setup: str = "mine", model: nn.Module | None = None) -> tuple[Progress | None, dict[str, Any]]:
    """The restored progress, and the model and optimizer after it."""
    model = model or Nested()
    optimizer = _train(model, 0)
    progress = restore(path, model, optimizer, setup)
    return progress, {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}


def _assert_restored(path: Path) -> None:
    progress, states = _read(path)
    assert progress == PROGRESS
    expected = {"model": TRAINED.state_dict(), "optimizer": OPTIMIZER.state_dict()["state"]}
    torch.testing.assert_close(states, expected, rtol=0, atol=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "folder" / "one", TRAINED, OPTIMIZER, PROGRESS, "mine")
    return tmp_path / "folder" / "one"


def test_weights_optimizer_and_progress_are_restored(path: Path) -> None:
    _assert_restored(path)


def test_writing_leaves_no_other_files(path: Path) -> None:
    write(path, TRAINED, OPTIMIZER, Progress(3), "mine")
    assert [p.name for p in path.parent.iterdir()] == ["one"]
    assert _read(path)[0] == Progress(3)


def test_interrupted_writes_keep_the_previous_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(path, TRAINED, OPTIMIZER, Progress(3), "mine")
    _assert_restored(path)


def test_missing_checkpoints_are_read_as_none(path: Path) -> None:
    assert _read(path.parent / "other")[0] is None
    assert _read(path.parent)[0] is None


def test_checkpoints_of_other_setups_are_ignored(path: Path) -> None:
    assert _read(path, "another")[0] is None


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_truncated_checkpoints_are_ignored(share: float, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert _read(path)[0] is None


def test_changed_bytes_are_detected(path: Path) -> None:
    data = path.read_bytes()
    for position in range(0, len(data), 97):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        assert _read(path)[0] is None


def test_other_files_are_ignored(path: Path) -> None:
    torch.save({"kind": "another"}, path)
    assert _read(path)[0] is None
    path.write_text("a text")
    assert _read(path)[0] is None


def test_restoring_another_model_fails_without_changes(path: Path) -> None:
    for other in (nn.Linear(3, 3), Nested().double()):
        before = {name: x.clone() for name, x in other.state_dict().items()}
        progress, states = _read(path, model=other)
        assert progress is None
        torch.testing.assert_close(states, {"model": before, "optimizer": {}}, rtol=0, atol=0)


def test_a_trained_model_is_restored_only_if_it_is_intact_and_fits(tmp_path: Path, path: Path) -> None:
    model, file = Nested(), tmp_path / "folder" / "model"
    write_model(file, TRAINED)
    data = file.read_bytes()
    assert restore_model(file, model)
    torch.testing.assert_close(model.state_dict(), TRAINED.state_dict(), rtol=0, atol=0)
    untouched = Nested()
    for changed in (data[:-1], data[:10] + bytes([data[10] ^ 1]) + data[11:], b"", path.read_bytes()):
        file.write_bytes(changed)
        assert not restore_model(file, untouched)
    file.write_bytes(data)
    assert not restore_model(file, nn.Linear(2, 3))
    assert not restore_model(tmp_path / "none", untouched)
    assert restore(file, untouched, _train(untouched, 0), "mine") is None
    torch.testing.assert_close(untouched.state_dict(), Nested().state_dict(), rtol=0, atol=0)
