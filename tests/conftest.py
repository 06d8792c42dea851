"""What all tests share: one thread, so that they neither disturb each other nor depend on the machine."""

from __future__ import annotations

import gc

import pytest
import torch

from efficient_attn.instruments import timing


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    gc.freeze()  # measuring collects garbage before it begins: not all of torch, pandas and pytest each time


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Rounds that last only as long as their passes, except where their length is what is tested."""
    if request.node.path.name != "test_timing.py":
        monkeypatch.setattr(timing, "ROUND_S", 0.01)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
