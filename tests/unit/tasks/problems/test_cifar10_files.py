"""CIFAR-10's pickles: those of Python 2 and 3 are read, and neither code nor damage gets through."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import lra_files
import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.cifar10_files import read_images


@pytest.mark.parametrize("python", [2, 3])
def test_grey_levels_are_those_of_the_colours(python: int, tmp_path: Path) -> None:
    lra_files.write_cifar10(tmp_path, python=python)
    colours, labels = lra_files.make_images(20, 5)
    planes = colours.astype(float).reshape(20, 3, 1024)
    grey = np.floor(0.2989 * planes[:, 0] + 0.587 * planes[:, 1] + 0.114 * planes[:, 2])
    images, read_labels = read_images(str(tmp_path), "test")
    assert images.dtype == np.uint8
    assert np.array_equal(images, grey)
    assert read_labels.tolist() == labels
    train, validation = (read_images(str(tmp_path), split)[0] for split in ("train", "validation"))
    assert (len(train), len(validation)) == (90, 10)


class _Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def test_pickles_cannot_call_functions(tmp_path: Path) -> None:
    lra_files.write_cifar10(tmp_path)
    for call in (_Call(os.mkdir, str(tmp_path / "made")), _Call(eval, "1"), _Call(np.load, "x")):
        lra_files.write_batch(tmp_path / "test_batch", {b"data": call, b"labels": [1]}, python=3)
        read_images.cache_clear()
        with pytest.raises(UsageError, match=r"test_batch: .* is not part of an array"):
            read_images(str(tmp_path), "test")
    assert not (tmp_path / "made").exists()


COLOURS, LABELS = lra_files.make_images(4)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps({b"data": COLOURS, b"labels": LABELS})[:-3000],
        pickle.dumps([1, 2]),
        pickle.dumps(None),
        pickle.dumps({b"data": COLOURS}),
        pickle.dumps({b"fine_labels": LABELS, b"data": COLOURS}),
        pickle.dumps({b"data": COLOURS[:, :3071], b"labels": LABELS}),
        pickle.dumps({b"data": COLOURS[:3], b"labels": LABELS}),
        pickle.dumps({b"data": COLOURS.astype(float), b"labels": LABELS}),
        pickle.dumps({b"data": COLOURS.tolist(), b"labels": LABELS}),
        pickle.dumps({b"data": COLOURS, b"labels": [0, 1, 2, 10]}),
        pickle.dumps({b"data": COLOURS, b"labels": [0, 1, 2, -1]}),
        pickle.dumps({b"data": COLOURS, b"labels": [[0], [1], [2], [3]]}),
        pickle.dumps({b"data": COLOURS, b"labels": [[0], [1, 2]]}),
        pickle.dumps({b"data": COLOURS, b"labels": 3}),
        pickle.dumps({b"data": COLOURS[:0], b"labels": []}),
    ],
)
def test_damaged_files_are_refused_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(UsageError, match=r"cifar10: .*test_batch: no images of"):
        read_images(str(tmp_path), "test")
