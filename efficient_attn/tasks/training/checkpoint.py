"""Checkpoints: the whole state of training in one file, which is replaced atomically."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ...results import durable

FORMAT = "efficient-attn training 1"


class CheckpointNotSaved(OSError):
    """A checkpoint that could not be written. The previous one still exists."""


@dataclass
class Progress:
    """The progress of training. steps: in total, fixed before the first. losses, scores: pairs of a step and a mean.
    stopped: why training ended before the last step."""

    steps: int
    step: int = 0
    train_s: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    scores: list[tuple[int, float]] = field(default_factory=list)
    running: list[float] = field(default_factory=list)  # losses since the last of ``losses``
    stopped: str | None = None


def write(path: Path, tensors: Mapping[str, Tensor], progress: Progress, setup: str) -> None:
    """Replace the file. setup: identifies the training. Raises `CheckpointNotSaved`; the previous file then remains."""
    contiguous = {name: x.detach().contiguous() for name, x in tensors.items()}
    progress_json = json.dumps(asdict(progress))
    checksum = _compute_checksum(contiguous, progress_json)
    metadata = {"kind": FORMAT, "order": setup, "progress": progress_json, "sum": checksum}
    try:
        durable.make_folder(path.parent)
        durable.replace(path, save(contiguous, metadata))
    except OSError as error:
        message = f"{path}: no checkpoint can be written: {error.strerror or error}"
        raise CheckpointNotSaved(f"{message}; free some space and continue with --resume --retry-failed") from error


def read(path: Path, setup: str) -> tuple[dict[str, Tensor], Progress] | None:
    """The checkpoint of this training; None without a valid one, so that training starts again."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if (metadata.get("kind"), metadata.get("order")) != (FORMAT, setup):
                return None
            # cloned, because they are views of the file
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  (not a mapping)
        if metadata["sum"] != _compute_checksum(tensors, metadata["progress"]):
            return None
        fields = json.loads(metadata["progress"])
        fields |= {name: [(int(step), float(value)) for step, value in fields[name]] for name in ("losses", "scores")}
        return tensors, Progress(**fields)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def _compute_checksum(tensors: Mapping[str, Tensor], progress_json: str) -> str:
    checksum = zlib.crc32(progress_json.encode())
    for name in sorted(tensors):
        x = tensors[name].cpu().contiguous().flatten()
        checksum = zlib.crc32(x.view(torch.uint8).numpy().data, zlib.crc32(name.encode(), checksum))
    return str(checksum)


def flatten(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The weights, and the optimizer's state of each, by name."""
    tensors = {f"model.{name}": x for name, x in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        tensors |= {f"optimizer.{name}.{key}": x for key, x in state.items()}
    return tensors


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> bool:
    """Restore what `flatten` returned. Returns whether it fits the model; if not, nothing changes."""
    prefix, expected = "model.", model.state_dict()
    weights = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    if _describe_tensors(weights) != _describe_tensors(expected):
        return False
    model.load_state_dict(weights)
    for name, parameter in model.named_parameters():
        parameter_prefix = f"optimizer.{name}."
        entries = {n.removeprefix(parameter_prefix): x for n, x in tensors.items() if n.startswith(parameter_prefix)}
        # a parameter's name may be a prefix of another's, whose keys then contain a dot
        if state := {key: x for key, x in entries.items() if "." not in key}:
            optimizer.state[parameter] = state
    return True


def _describe_tensors(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (x.shape, x.dtype) for name, x in tensors.items()}
