"""Real queries, keys and values, captured from trained models: the built-in file, or the user's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..shipped import suites_folder

BUILT_IN = "minilm"


@dataclass(frozen=True, eq=False)
class Activations:
    """q ``[L, H, N, D]``, k ``[L, Hkv, M, D]``, v ``[L, Hkv, M, E]`` of L layers, as they enter attention, unscaled.

    label: the file's name and a digest of its content. layers: what the model calls them.
    """

    label: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    layers: tuple[int, ...]
    source: str

    @classmethod
    def find(cls, name: str) -> Activations:
        """Read the built-in activations by name, or a ``.npz`` or ``.safetensors`` file by path.

        The file holds arrays ``q``, ``k`` and ``v``, each ``[layers, heads, length, width]`` or, for one layer,
        ``[heads, length, width]``; optionally ``layers`` (their numbers). Raises `UsageError` for anything else.
        """
        path = suites_folder() / "data" / f"{name}.npz" if name == BUILT_IN else Path(name)
        if not path.is_file():
            raise UsageError(f"--activations {name}: no such file (built in: {BUILT_IN})")
        arrays = _read(path)
        missing = [n for n in ("q", "k", "v") if n not in arrays]
        if missing:
            raise UsageError(
                f"{path.name}: no array named {missing[0]!r}; it needs q, k and v, and has {sorted(arrays)}"
            )
        q, k, v = (_four_dimensional(path, n, arrays[n]) for n in ("q", "k", "v"))
        _check(path, q, k, v)
        layers = _layers(path, arrays.get("layers", np.arange(len(q))), len(q))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        return cls(f"{path.stem}@{digest}", q, k, v, layers, str(arrays.get("source", "")))

    def layer(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k and v of one layer, each with a batch of one in front."""
        at = self.layers.index(number)
        return self.q[at : at + 1], self.k[at : at + 1], self.v[at : at + 1]


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # torch knows bfloat16, numpy does not

            return {name: x.float().numpy() for name, x in load_file(path).items()}
    except Exception as error:
        raise UsageError(f"{path.name}: cannot be read: {type(error).__name__}: {error}") from error
    raise UsageError(f"{path.name}: activations are a .npz or .safetensors file")


def _four_dimensional(path: Path, name: str, x: np.ndarray) -> np.ndarray:
    if x.ndim not in (3, 4) or not np.issubdtype(x.dtype, np.floating) or 0 in x.shape:
        raise UsageError(
            f"{path.name}: {name} must be floating [layers, heads, length, width], got {x.dtype} {list(x.shape)}"
        )
    if not np.isfinite(x).all():
        raise UsageError(f"{path.name}: {name} holds values that are not finite")
    return x if x.ndim == 4 else x[None]


def _layers(path: Path, numbers: np.ndarray, count: int) -> tuple[int, ...]:
    whole = numbers.dtype.kind in "iuf" and np.isfinite(numbers).all() and (numbers == np.trunc(numbers)).all()
    if not whole or numbers.shape != (count,) or len(np.unique(numbers)) != count:
        raise UsageError(f"{path.name}: layers must name each of the {count} layers once, got {numbers.tolist()}")
    return tuple(int(x) for x in numbers)


def _check(path: Path, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    layers, heads, length, width = q.shape
    kv_heads = k.shape[1]
    if k.shape != (layers, kv_heads, length, width) or v.shape != k.shape or heads % kv_heads:
        raise UsageError(
            f"{path.name}: shapes do not fit: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
            "all have one length and width, and the heads of q are a multiple of those of k and v"
        )
