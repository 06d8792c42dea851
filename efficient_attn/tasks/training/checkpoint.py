"""Checkpoints: the whole state of training in one file, which is replaced atomically; and trained models."""

import io
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...results import durable

FORMAT = "efficient-attn training 3"
MODEL_FORMAT = "efficient-attn model 1"
CHECKSUM_BYTES = 4  # at the beginning of a file


class CheckpointNotSaved(OSError):
    """A checkpoint that could not be written. The previous one still exists."""


@dataclass
class Progress:
    """The progress of training. steps: at most, fixed before the first. losses, scores: pairs of a step and a mean.
    score_error: standard error of the last score. seconds: of training steps, at each score. decay_from: the step from
    which the learning rate decays, once it is known. stopped: why training ended, or why the decay began."""

    steps: int
    step: int = 0
    train_s: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    scores: list[tuple[int, float]] = field(default_factory=list)
    score_error: float = 0.0
    seconds: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)  # losses since the last of ``losses``
    decay_from: int | None = None
    stopped: str | None = None


def write(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, setup: str) -> None:
    """Replace the file. setup: identifies the training. Raises `CheckpointNotSaved`; the previous file then remains."""
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": vars(progress)}
    _write_states(path, {"kind": FORMAT, "setup": setup, **states})


def write_model(path: Path, model: nn.Module) -> None:
    """Store a trained model's state. Raises `CheckpointNotSaved`."""
    _write_states(path, {"kind": MODEL_FORMAT, "model": model.state_dict()})


def _write_states(path: Path, states: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(states, buffer)
    content = buffer.getvalue()
    try:
        durable.make_folder(path.parent)
        durable.replace(path, zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "big") + content)
    except OSError as error:
        message = f"{path}: no checkpoint can be written: {error.strerror or error}"
        raise CheckpointNotSaved(f"{message}; free some space and continue with --resume --retry-failed") from error


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, setup: str) -> Progress | None:
    """Restore the checkpoint of this training, and return its progress. Without a valid checkpoint that fits the model
    nothing changes, so that training starts again."""
    states = _read_states(path, FORMAT)
    if (
        states is None
        or states["setup"] != setup
        or _describe_tensors(states["model"]) != _describe_tensors(model.state_dict())
    ):
        return None
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    return Progress(**states["progress"])


def restore_model(path: Path, model: nn.Module) -> bool:
    """Restore a trained model's state. Returns whether there is a valid one that fits; otherwise nothing changes."""
    states = _read_states(path, MODEL_FORMAT)
    if states is None or _describe_tensors(states["model"]) != _describe_tensors(model.state_dict()):
        return False
    model.load_state_dict(states["model"])
    return True


def _read_states(path: Path, kind: str) -> dict[str, Any] | None:
    """What `_write_states` has stored; None without an intact file of this kind."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[CHECKSUM_BYTES:]
    if not content or zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "big") != data[:CHECKSUM_BYTES]:
        return None
    states = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return states if states["kind"] == kind else None


def _describe_tensors(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (x.shape, x.dtype) for name, x in tensors.items()}
