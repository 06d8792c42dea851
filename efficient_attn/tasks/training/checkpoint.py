"""Checkpoints: all that training goes on from, in one file that is replaced as a whole, or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ...results import durable

KIND = "efficient-attn training 1"


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


def write(path: Path, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    """Replace the file. `OSError` where the disk has no room; what was there is then still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: x.detach().contiguous() for name, x in tensors.items()}
    durable.replace(path, save(plain, {"kind": KIND, "progress": json.dumps(asdict(progress))}))


def read(path: Path) -> tuple[dict[str, Tensor], Progress] | None:
    """What was written; None where there is nothing, or nothing that can be read, so that training begins anew."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("kind") != KIND:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (OSError, SafetensorError):
        return None
    told = json.loads(about["progress"])
    told |= {name: [(int(step), float(value)) for step, value in told[name]] for name in ("losses", "scores")}
    return tensors, Progress(**told)


def flatten(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The weights, and what the optimizer remembers of each, by names."""
    found = {f"model.{name}": x for name, x in model.state_dict().items()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        found |= {f"optimizer.{names[parameter]}.{key}": x for key, x in state.items()}
    return found


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `flatten` found."""
    prefix = "model."
    model.load_state_dict({n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)})
    for name, parameter in model.named_parameters():
        begin = f"optimizer.{name}."
        # a parameter's name may begin another's: what follows it has no dot
        own = {n.removeprefix(begin): x for n, x in tensors.items() if n.startswith(begin)}
        state = {key: x for key, x in own.items() if "." not in key}
        if state:
            optimizer.state[parameter] = state
