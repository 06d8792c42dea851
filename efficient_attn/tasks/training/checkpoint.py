"""Checkpoints: all that training goes on from, in one file that is replaced as a whole, or not at all."""

from __future__ import annotations

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

KIND = "efficient-attn training 1"


class NotSaved(OSError):
    """A checkpoint that the disk did not take. The one before it is still there."""


@dataclass
class Progress:
    """How far training is. steps: of all, fixed before the first. losses, scores: pairs of a step and a mean."""

    steps: int
    step: int = 0
    train_s: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    scores: list[tuple[int, float]] = field(default_factory=list)
    running: list[float] = field(default_factory=list)  # losses since the last of ``losses``
    stopped: str | None = None


def write(path: Path, tensors: Mapping[str, Tensor], progress: Progress, order: str) -> None:
    """Replace the file. order: what is trained, in words. Raises `NotSaved`, and what was there is then still there."""
    plain = {name: x.detach().contiguous() for name, x in tensors.items()}
    told = json.dumps(asdict(progress))
    about = {"kind": KIND, "order": order, "progress": told, "sum": _sum(plain, told)}
    try:
        durable.make_folder(path.parent)
        durable.replace(path, save(plain, about))
    except OSError as error:
        said = f"{path}: no checkpoint can be written: {error.strerror or error}"
        raise NotSaved(f"{said}; make room and go on with --resume --retry-failed") from error


def read(path: Path, order: str) -> tuple[dict[str, Tensor], Progress] | None:
    """What was written for this order; None where there is nothing, or nothing that can be trusted, so that training
    begins anew."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if (about.get("kind"), about.get("order")) != (KIND, order):
                return None
            # not views of the file
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  (no mapping)
        if about["sum"] != _sum(tensors, about["progress"]):
            return None
        told = json.loads(about["progress"])
        told |= {name: [(int(step), float(value)) for step, value in told[name]] for name in ("losses", "scores")}
        return tensors, Progress(**told)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def _sum(tensors: Mapping[str, Tensor], told: str) -> str:
    """A checksum of all that is gone on from."""
    found = zlib.crc32(told.encode())
    for name in sorted(tensors):
        x = tensors[name].cpu().contiguous().flatten()
        found = zlib.crc32(x.view(torch.uint8).numpy().data, zlib.crc32(name.encode(), found))
    return str(found)


def flatten(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The weights, and what the optimizer remembers of each, by names."""
    found = {f"model.{name}": x for name, x in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        found |= {f"optimizer.{name}.{key}": x for key, x in state.items()}
    return found


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> bool:
    """Put back what `flatten` found; whether it is of such a model. Nothing is changed where it is not."""
    prefix, wanted = "model.", model.state_dict()
    weights = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    if _kinds(weights) != _kinds(wanted):
        return False
    model.load_state_dict(weights)
    for name, parameter in model.named_parameters():
        begin = f"optimizer.{name}."
        # a parameter's name may begin another's: what follows it has no dot
        own = {n.removeprefix(begin): x for n, x in tensors.items() if n.startswith(begin)}
        state = {key: x for key, x in own.items() if "." not in key}
        if state:
            optimizer.state[parameter] = state
    return True


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (x.shape, x.dtype) for name, x in tensors.items()}
