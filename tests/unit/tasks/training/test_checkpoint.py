"""Checkpoints: replaced as a whole or not at all, and trusted only where nothing is wrong with them."""

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


def test_all_of_it_comes_back(path: Path) -> None:
    found = read(path, "mine")
    assert found is not None
    assert found[1] == PROGRESS
    assert found[0].keys() == TENSORS.keys()
    assert all(torch.equal(found[0][name], x) for name, x in TENSORS.items())


def test_nothing_else_is_left_beside_it(path: Path) -> None:
    write(path, TENSORS, Progress(3), "mine")
    assert [p.name for p in path.parent.iterdir()] == ["one"]
    assert (read(path, "mine") or ({}, None))[1] == Progress(3)


def test_a_kill_while_it_is_replaced_leaves_the_one_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable.os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        write(path, TENSORS, Progress(3), "mine")
    assert (read(path, "mine") or ({}, None))[1] == PROGRESS


def test_none_is_read_where_there_is_none(path: Path) -> None:
    assert read(path.parent / "other", "mine") is None
    assert read(path.parent, "mine") is None


def test_one_of_another_order_is_not_trusted(path: Path) -> None:
    assert read(path, "another") is None


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_one_that_was_cut_short_is_not_trusted(share: float, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert read(path, "mine") is None


def test_no_byte_of_it_can_change_unseen(path: Path) -> None:
    data = path.read_bytes()
    for place in range(8, len(data), 5):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        found = read(path, "mine")
        if found is not None:  # the spaces that fill a line up, and the like
            assert found[1] == PROGRESS
            assert all(torch.equal(found[0][name], x) for name, x in TENSORS.items())


def test_what_is_no_checkpoint_is_not_trusted(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    for changed in (
        {"kind": "efficient-attn training 0"},
        {"progress": "{}"},
        {"progress": "no JSON"},
        {"progress": json.dumps({"steps": 1, "losses": [], "scores": [], "later": 1})},
        {"sum": ""},
    ):
        save_file({"a": torch.tensor(3.0)}, path, about | changed)
        assert read(path, "mine") is None
    save_file({"a": torch.tensor(3.0)}, path)
    assert read(path, "mine") is None
    path.write_text("a text")
    assert read(path, "mine") is None


def test_what_was_read_does_not_hang_on_the_file(path: Path) -> None:
    found = read(path, "mine")
    assert found is not None
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(found[0]["b"], TENSORS["b"])


# -- models ----------------------------------------------------------------------------------------------------------


def _train(model: nn.Module, steps: int) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.stack([p.square().sum() for p in model.parameters()]).sum().backward()
        optimizer.step()
    return optimizer


class Nested(nn.Module):
    """A parameter's name begins another's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.ParameterDict({"weight": torch.ones(2), "other": torch.ones(3)})
        self.bias = nn.Parameter(torch.ones(1))


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_weights_and_what_the_optimizer_remembers_are_put_back() -> None:
    model, other = Nested(), Nested()
    found = flatten(model, _train(model, 3))
    assert "optimizer.weight.other.exp_avg_sq" in found
    fresh = torch.optim.AdamW(other.parameters(), lr=0.1)
    assert restore(other, fresh, {name: x.clone() for name, x in found.items()})
    assert _same(flatten(other, fresh), found)
    assert float(fresh.state[other.bias]["step"]) == 3


def test_what_is_of_another_model_is_refused_and_changes_nothing() -> None:
    model, other = nn.Linear(2, 3), nn.Linear(3, 3)
    before = {name: x.clone() for name, x in other.state_dict().items()}
    fresh = torch.optim.AdamW(other.parameters())
    for wrong in (model, nn.Linear(3, 3).double(), nn.Linear(3, 3, bias=False)):
        assert not restore(other, fresh, flatten(wrong, _train(wrong, 1)))
        assert _same(other.state_dict(), before)
        assert not fresh.state
