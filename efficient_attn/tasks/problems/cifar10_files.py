"""Read the pickles of CIFAR-10 without running code: they may name nothing but NumPy arrays."""

import pickle
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Split

TRAIN_FILES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_FILE = "test_batch"
CLASSES = 10
PIXELS = 1024
TRAIN_SHARE = 0.9  # of the images for training; the others are for validation
GREY_WEIGHTS = 0.2989, 0.587, 0.114  # of red, green and blue, as in LRA
ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0] for core in ("core", "_core")},
}
PICKLE_ERRORS = (
    pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError, MemoryError, TypeError,
    ValueError,
)  # fmt: skip


class ArrayUnpickler(pickle.Unpickler):
    """Loads arrays and Python's own containers; raises `pickle.UnpicklingError` for all else."""

    def find_class(self, module: str, name: str, /) -> Any:
        """The function or class of arrays of that name."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")
        return ALLOWED[module, name]


@lru_cache(4)
def read_images(folder: str, split: Split) -> tuple[Array, Array]:
    """Grey images ``[S, 1024]``, uint8, and labels ``[S]``: of the images for training in order, the first 90%, and the
    others for validation. Raises `UsageError` for missing and damaged files."""
    names = (TEST_FILE,) if split == "test" else TRAIN_FILES
    parts = [_read_file(Path(folder) / name) for name in names]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if split == "test":
        return images, labels
    n_train = round(TRAIN_SHARE * len(labels))
    rows = slice(n_train) if split == "train" else slice(n_train, None)
    return images[rows].copy(), labels[rows]


def _read_file(path: Path) -> tuple[Array, Array]:
    """Grey images and labels of a file."""
    try:
        content = ArrayUnpickler(BytesIO(path.read_bytes()), encoding="bytes").load()
        colours, labels = content[b"data"], np.array(content[b"labels"])
    except OSError as error:
        raise UsageError(f"cifar10: {path}: {error.strerror}; --data is the folder cifar-10-batches-py") from None
    except PICKLE_ERRORS as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())  # of one line
        raise UsageError(f"cifar10: {path}: no images of CIFAR-10: {message}") from None
    is_image = isinstance(colours, np.ndarray) and colours.dtype == np.uint8
    is_label = labels.dtype.kind == "i" and labels.ndim == 1 and ((labels >= 0) & (labels < CLASSES)).all()
    if not is_image or not is_label or not len(labels) or colours.shape != (len(labels), 3 * PIXELS):
        raise UsageError(f"cifar10: {path}: no images of 3 x {PIXELS} values with labels from 0 to {CLASSES - 1}")
    planes = colours.reshape(-1, 3, PIXELS)
    grey = sum(weight * planes[:, i] for i, weight in enumerate(GREY_WEIGHTS))
    return np.asarray(grey).astype(np.uint8), labels
