"""Small files in the formats of Long Range Arena: pairs of papers, reviews, CIFAR-10 and Pathfinder."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

WORDS = [f"word{i}" for i in range(200)]
PAIR_FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}


def write_pairs(folder: Path, count: int = 60) -> Path:
    """Pairs of texts, which have common words if the label is 1; labels are ``0`` or, in other files, ``0.0``."""
    generator = np.random.default_rng(0)
    for index, name in enumerate(PAIR_FILES.values()):
        lines = []
        for number in range(count):
            label = number % 2
            first = generator.choice(WORDS, 12)
            second = np.where(generator.random(12) < 0.5, first, "same") if label else generator.choice(WORDS, 12)
            columns = [("0", "0.0", "1", "1.0")[2 * label + index % 2], f"P{number}", f"Q{number}"]
            lines.append("\t".join([*columns, " ".join(first), " ".join(second)]))
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def write_reviews(folder: Path, count: int = 40) -> Path:
    """So many reviews of each class in both parts, of different lengths; a word depends on the class."""
    generator = np.random.default_rng(1)
    for part in ("train", "test"):
        for label, name in enumerate(("neg", "pos")):
            place = folder / part / name
            place.mkdir(parents=True)
            for number in range(count):
                words = [*generator.choice(WORDS, 3 + number % 20), ("dull", "vivid")[label]]
                (place / f"{number}_{9 * label + 1}.txt").write_text(" ".join(words) + f" {part} {number}")
    return folder


def make_images(count: int, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    """Colours ``[S, 3072]`` with bright pixels ``100 label`` to ``100 label + 99``, and labels."""
    generator = np.random.default_rng(seed)
    labels = [number % 10 for number in range(count)]
    is_bright = np.arange(1024) // 100 == np.array(labels)[:, None]
    return (60 + 100 * np.tile(is_bright, 3) + generator.integers(40, size=(count, 3072))).astype(np.uint8), labels


class _Python2Pickler(pickle._Pickler):  # type: ignore[attr-defined, name-defined]
    """Writes text and bytes as strings of Python 2."""

    dispatch: ClassVar[Any] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: Any) -> None:
        content = value.encode("latin1") if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(content)) + content)  # pyright: ignore[reportAttributeAccessIssue]

    dispatch[str] = dispatch[bytes] = save_string


def write_batch(path: Path, content: Any, *, python: int = 2) -> None:
    """A pickle as the released ones, by Python 2, or by Python 3."""
    if python == 3:
        path.write_bytes(pickle.dumps(content))
        return
    with path.open("wb") as file:
        _Python2Pickler(file, protocol=2).dump(content)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.", b"numpy.core."))


def write_cifar10(folder: Path, count: int = 20, *, python: int = 2) -> Path:
    """Six files of so many images."""
    for index, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        colours, labels = make_images(count, index)
        content = {"batch_label": name, "labels": labels, "data": colours, "filenames": ["a.png"] * count}
        if python == 3:
            content = {key.encode(): value for key, value in content.items()}
        write_batch(folder / name, content, python=python)
    return folder


def write_pathfinder(folder: Path, count: int = 100, *, side: int = 16, per_file: int = 10) -> Path:
    """Images whose first pixel is their number, and whose label is whether they have a bright row; a metadata file for
    ten of them."""
    (folder / "metadata").mkdir(parents=True)
    for first in range(0, count, per_file):
        name, lines = str(first // per_file), []
        (folder / "imgs" / name).mkdir(parents=True)
        for number in range(first, min(first + per_file, count)):
            pixels = np.zeros((side, side), np.uint8)
            pixels[3] = 200 * (number % 2)
            pixels[0, 0] = number
            Image.fromarray(pixels).save(folder / "imgs" / name / f"sample_{number}.png")
            lines.append(f"imgs/{name} sample_{number}.png {number} {number % 2} 1.8 6 0 0 2 0 1")
        (folder / "metadata" / f"{name}.npy").write_text("\n".join(lines) + "\n")
    return folder
