"""Files of activations: the built-in ones, the user's own, and the errors of invalid files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from efficient_attn.errors import NotInstalled, UsageError
from efficient_attn.tasks.fidelity import activations
from efficient_attn.tasks.fidelity.activations import (
    CAPTURES,
    Activations,
    describe_activations,
)


def _arrays(*shape: int, kv_heads: int | None = None) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    narrow = (*shape[:-3], kv_heads or shape[-3], *shape[-2:])
    return {n: generator.standard_normal(shape if n == "q" else narrow).astype("float32") for n in ("q", "k", "v")}


def _npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def test_minilm_has_three_layers_of_a_trained_encoder() -> None:
    loaded = Activations.find("minilm")
    assert loaded.q.shape == loaded.k.shape == loaded.v.shape == (3, 12, 384, 32)
    assert loaded.sizes.layers == (0, 2, 5)
    assert loaded.sizes.label.startswith("minilm@")
    assert all(x.astype("float32").std() > 0.1 for x in (loaded.q, loaded.k, loaded.v))


def test_smollm2_has_the_sizes_that_are_listed_for_it() -> None:
    loaded = Activations.find(str(Path(__file__).parents[4] / "suites" / "data" / "smollm2.npz"))  # not in wheels
    assert loaded.sizes._replace(label="smollm2") == CAPTURES["smollm2"]
    assert (loaded.q.shape, loaded.k.shape, loaded.v.shape) == ((2, 9, 2048, 64), (2, 3, 2048, 64), (2, 3, 2048, 64))
    assert loaded.sizes.label.startswith("smollm2@")
    assert describe_activations("smollm2")._replace(label="") == loaded.sizes._replace(label="")
    assert all(x.dtype == np.float16 and x.astype("float32").std() > 0.1 for x in (loaded.q, loaded.k, loaded.v))


@pytest.mark.parametrize(("name", "length"), [("smollm2", 2048), ("smollm2_8192", 8192)])
def test_missing_captures_are_reported_with_the_command(
    name: str, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "find_suites_folder", lambda: tmp_path)
    command = f"efficient_attn.integrations.capture --model smollm2 --layers 5,20 --seq-len {length} --out {name}.npz"
    with pytest.raises(NotInstalled, match=rf"python -m {command}\).* --activations {name}.npz"):
        Activations.find(name)
    assert describe_activations(name) == CAPTURES[name]
    assert (CAPTURES[name].label, CAPTURES[name].length) == ("smollm2", length)
    with pytest.raises(UsageError, match="no such file") as caught:
        describe_activations("minilm")
    assert not isinstance(caught.value, NotInstalled)


def test_captures_are_labelled_by_their_model_at_every_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "smollm2_8192.npz"
    _npz(tmp_path, **_arrays(2, 4, 10, 8, kv_heads=2)).rename(file)
    monkeypatch.setattr(activations, "find_suites_folder", lambda: tmp_path)
    by_name, by_path = Activations.find("smollm2_8192"), Activations.find(str(file))
    assert by_name.sizes.label == by_path.sizes.label
    assert by_name.sizes.label.partition("@")[0] == "smollm2"
    assert by_name.sizes.length == 10  # the file's, not the listed one


def test_layers_are_selected_by_number() -> None:
    loaded = Activations.find("minilm")
    q, k, v = loaded.select_layer(2)
    assert q.shape == k.shape == v.shape == (1, 12, 384, 32)
    for got, all_layers in ((q, loaded.q), (k, loaded.k), (v, loaded.v)):
        np.testing.assert_array_equal(got[0], all_layers[1])


def test_npz_files_of_users_are_read(tmp_path: Path) -> None:
    arrays = _arrays(2, 4, 10, 8, kv_heads=2)
    loaded = Activations.find(str(_npz(tmp_path, **arrays, layers=[3, 7], source="me")))
    for name in ("q", "k", "v"):
        np.testing.assert_array_equal(getattr(loaded, name), arrays[name])
    assert loaded.sizes.layers == (3, 7)
    assert loaded.sizes.label.startswith("mine@")


def test_the_layer_dimension_is_optional(tmp_path: Path) -> None:
    loaded = Activations.find(str(_npz(tmp_path, **_arrays(4, 10, 8))))
    assert loaded.q.shape == (1, 4, 10, 8)
    assert loaded.sizes.layers == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors_files_of_users_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {n: torch.from_numpy(x).to(dtype) for n, x in _arrays(2, 4, 10, 8).items()}
    path = tmp_path / "mine.safetensors"
    save_file(tensors | {"layers": torch.tensor([1, 4])}, path)
    loaded = Activations.find(str(path))
    assert loaded.sizes.layers == (1, 4)
    for name in ("q", "k", "v"):
        np.testing.assert_array_equal(getattr(loaded, name), tensors[name].float().numpy())


def test_the_label_depends_on_the_content(tmp_path: Path) -> None:
    arrays = _arrays(1, 2, 4, 8)
    first = Activations.find(str(_npz(tmp_path, **arrays))).sizes.label
    assert Activations.find(str(_npz(tmp_path, **arrays))).sizes.label == first
    arrays["v"][0, 0, 0, 0] += 1
    assert Activations.find(str(_npz(tmp_path, **arrays))).sizes.label != first


def _with(**changes: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        arrays = _arrays(2, 4, 10, 8) | changes
        return _npz(folder, **{n: x for n, x in arrays.items() if x is not None})

    return write


def _named(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


class _Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("the pickle was opened",))


def _ones(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


INFINITE = _ones(2, 4, 10, 8)
INFINITE[1, 2, 3, 4] = np.inf

WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no q": (_with(q=None), r"no array named 'q'; .* has \['k', 'v'\]"),
    "no v": (_with(v=None), "no array named 'v'"),
    "two dimensions": (_with(q=_ones(10, 8)), r"q must be floating .* float32 \[10, 8\]"),
    "five dimensions": (_with(v=_ones(1, 2, 4, 10, 8)), "v must be floating"),
    "nothing": (_with(k=_ones(2, 4, 0, 8)), "k must be floating"),
    "integers": (_with(k=_ones(2, 4, 10, 8, dtype="int64")), "k must be floating .* int64"),
    "not finite": (_with(v=INFINITE), "v has values that are not finite"),
    "other layers": (_with(k=_ones(1, 4, 10, 8), v=_ones(1, 4, 10, 8)), "shapes do not fit"),
    "another length": (_with(k=_ones(2, 4, 9, 8), v=_ones(2, 4, 9, 8)), "shapes do not fit"),
    "another width": (_with(k=_ones(2, 4, 10, 4), v=_ones(2, 4, 10, 4)), "shapes do not fit"),
    "k unlike v": (_with(v=_ones(2, 2, 10, 8)), "shapes do not fit"),
    "heads that do not divide": (_with(k=_ones(2, 3, 10, 8), v=_ones(2, 3, 10, 8)), "the heads of q are a multiple"),
    "too few layer numbers": (_with(layers=[1]), "layers must name each of the 2 layers once"),
    "a layer number twice": (_with(layers=[1, 1]), "layers must name each of the 2 layers once"),
    "one layer number alone": (_with(layers=3), "layers must"),
    "layer numbers in two dimensions": (_with(layers=[[1], [2]]), "layers must"),
    "layer names": (_with(layers=["first", "last"]), "layers must"),
    "pickled arrays": (_with(q=np.array([_Trap()], dtype=object)), "cannot be read"),
    "a pickle": (_named("mine.npz", pickle.dumps(_Trap())), "cannot be read"),
    "broken npz": (_named("mine.npz", b"PK\x03\x04 and then nothing"), "cannot be read"),
    "broken safetensors": (_named("mine.safetensors", b"\xff" * 40), "cannot be read"),
    "empty file": (_named("mine.npz", b""), "cannot be read"),
    "another kind of file": (_named("mine.pt", b""), r"a \.npz or \.safetensors file"),
    "no file": (
        lambda folder: folder / "gone.npz",
        r"gone\.npz: no such file \(built in: minilm, smollm2, smollm2_8192\)",
    ),
    "a folder": (lambda folder: folder, "no such file"),
}


@pytest.mark.parametrize(("write", "message"), WRONG.values(), ids=WRONG)
def test_invalid_files_are_refused_with_one_line(write: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        Activations.find(str(path))
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
