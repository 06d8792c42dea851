"""Queries, keys and values captured from trained models: built-in files, or the user's."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ...errors import NotInstalled, UsageError
from ...resources import find_suites_folder

BUILT_IN = "minilm", "smollm2", "smollm2_8192"


class ActivationSizes(NamedTuple):
    """The sizes of activations. label: the model's name for captures by that name, else the file's, with a digest of
    the file's content if it is known. layers: their numbers in the model."""

    label: str
    layers: tuple[int, ...]
    heads: int
    kv_heads: int
    length: int
    width: int


# files that the package does not contain, because they are too large; the repository has that of 2,048 tokens
CAPTURES = {
    "smollm2": ActivationSizes("smollm2", (5, 20), heads=9, kv_heads=3, length=2048, width=64),
    "smollm2_8192": ActivationSizes("smollm2", (5, 20), heads=9, kv_heads=3, length=8192, width=64),
}


@dataclass(frozen=True, eq=False)
class Activations:
    """q ``[L, H, N, D]``, k ``[L, Hkv, M, D]``, v ``[L, Hkv, M, E]`` of L layers, as inputs of attention, unscaled."""

    sizes: ActivationSizes
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @classmethod
    def find(cls, name: str) -> Self:
        """Read built-in activations by name (`BUILT_IN`), or a ``.npz`` or ``.safetensors`` file by path.

        The file contains arrays ``q``, ``k`` and ``v``, each ``[layers, heads, length, width]`` or, for one layer,
        ``[heads, length, width]``; optionally ``layers`` (their numbers). Raises `NotInstalled` for built-in
        ones whose file is not installed, and `UsageError` for anything else.
        """
        path = find_suites_folder() / "data" / f"{name}.npz" if name in BUILT_IN else Path(name)
        if not path.is_file():
            if name in CAPTURES:
                raise NotInstalled(_format_capture_hint(name, CAPTURES[name]))
            raise UsageError(f"--activations {name}: no such file (built in: {', '.join(BUILT_IN)})")
        arrays = _read_arrays(path)
        if missing := [n for n in ("q", "k", "v") if n not in arrays]:
            has = f"it needs q, k and v, and has {sorted(arrays)}"
            raise UsageError(f"{path.name}: no array named {missing[0]!r}; {has}")
        q, k, v = (_check_array(path, n, arrays[n]) for n in ("q", "k", "v"))
        _check_shapes(path, q, k, v)
        layers = _check_layer_numbers(path, arrays.get("layers", np.arange(len(q))), len(q))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        model = CAPTURES[path.stem].label if path.stem in CAPTURES else path.stem
        return cls(ActivationSizes(f"{model}@{digest}", layers, q.shape[1], k.shape[1], *q.shape[2:]), q, k, v)

    def select_layer(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k and v of one layer, each with a batch of one in front."""
        index = self.sizes.layers.index(number)
        return self.q[index : index + 1], self.k[index : index + 1], self.v[index : index + 1]


def describe_activations(name: str) -> ActivationSizes:
    """The sizes of the activations that `Activations.find` returns, or would return if they were installed."""
    try:
        return Activations.find(name).sizes
    except NotInstalled:
        return CAPTURES[name]


def _format_capture_hint(name: str, sizes: ActivationSizes) -> str:
    layers, file = ",".join(map(str, sizes.layers)), f"{name}.npz"
    options = f"--model {sizes.label} --layers {layers} --seq-len {sizes.length} --out {file}"
    make_it = f"make it (python -m efficient_attn.integrations.capture {options})"
    return f"{file} is not installed; {make_it}, then use --activations {file}"


def _read_arrays(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # torch supports bfloat16, numpy does not

            return {name: x.float().numpy() for name, x in load_file(path).items()}
    except Exception as error:
        raise UsageError(f"{path.name}: cannot be read: {type(error).__name__}: {error}") from error
    raise UsageError(f"{path.name}: activations are a .npz or .safetensors file")


def _check_array(path: Path, name: str, x: np.ndarray) -> np.ndarray:
    if x.ndim not in (3, 4) or not np.issubdtype(x.dtype, np.floating) or 0 in x.shape:
        actual = f"{x.dtype} {list(x.shape)}"
        raise UsageError(f"{path.name}: {name} must be floating [layers, heads, length, width], got {actual}")
    if not np.isfinite(x).all():
        raise UsageError(f"{path.name}: {name} has values that are not finite")
    return x if x.ndim == 4 else x[None]


def _check_layer_numbers(path: Path, numbers: np.ndarray, count: int) -> tuple[int, ...]:
    is_integral = numbers.dtype.kind in "iuf" and np.isfinite(numbers).all() and (numbers == np.trunc(numbers)).all()
    if not is_integral or numbers.shape != (count,) or len(np.unique(numbers)) != count:
        raise UsageError(f"{path.name}: layers must name each of the {count} layers once, got {numbers.tolist()}")
    return tuple(int(x) for x in numbers)


def _check_shapes(path: Path, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    layers, heads, length, width = q.shape
    kv_heads = k.shape[1]
    if k.shape != (layers, kv_heads, length, width) or v.shape != k.shape or heads % kv_heads:
        raise UsageError(
            f"{path.name}: shapes do not fit: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
            "all have one length and width, and the heads of q are a multiple of those of k and v"
        )
