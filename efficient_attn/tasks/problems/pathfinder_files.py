"""Read Long Range Arena's images of Pathfinder: a folder ``metadata`` with plain text in files named ``.npy``, a line
for each image, and the images that they name."""

import os
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Split

SHARES: dict[Split, tuple[float, float]] = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
FOLDER, FILE, LABEL = 0, 1, 3  # fields of a line
LABELS = {"0": 0, "1": 1}


class ImageList(NamedTuple):
    """The files of images in the order of the metadata, their labels, and files without content, which are left out."""

    files: list[str]
    labels: Array
    empty: list[str]


@lru_cache(2)
def list_images(folder: str) -> ImageList:
    """The images of a folder. Raises `UsageError` with file and line for other formats and missing images."""
    metadata = sorted(Path(folder, "metadata").glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
    if not metadata:
        raise UsageError(
            f"pathfinder: {Path(folder, 'metadata')}: no .npy files; --data is a folder such as "
            "pathfinder32/curv_contour_length_14"
        )
    files, labels, empty = [], [], []
    for path in metadata:
        for number, line in enumerate(_read_lines(path), 1):
            fields = line.split()
            if len(fields) <= LABEL or fields[LABEL] not in LABELS:
                raise UsageError(f"pathfinder: {path}:{number}: no folder, file, number and label 0 or 1")
            file = os.path.join(folder, fields[FOLDER], fields[FILE])
            try:
                size = os.stat(file).st_size
            except OSError as error:
                raise UsageError(f"pathfinder: {path}:{number}: {file}: {error.strerror}") from None
            if size:
                files.append(file)
                labels.append(LABELS[fields[LABEL]])
            else:
                empty.append(file)
    if len(files) < 10:
        raise UsageError(f"pathfinder: {metadata[0].parent}: {len(files)} images, too few for three parts")
    return ImageList(files, np.array(labels), empty)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"pathfinder: {path}: no plain text: {error}") from None


@lru_cache(6)
def read_images(folder: str, side: int, split: Split) -> tuple[Array, Array]:
    """Grey images ``[S, side, side]``, uint8, and labels ``[S]``: of the images in order, the first 80% are for
    training, 10% for validation, and 10% for tests. Raises `UsageError` for damaged images, and for another size."""
    from PIL import Image, UnidentifiedImageError

    files, labels, _ = list_images(folder)
    first, end = (round(share * len(files)) for share in SHARES[split])
    images = np.empty((end - first, side, side), dtype=np.uint8)
    for image, file in zip(images, files[first:end], strict=True):
        try:
            content = BytesIO(Path(file).read_bytes())
            with Image.open(content) as picture:
                picture.verify()  # checksums, which decoding ignores
            with Image.open(content) as picture:
                pixels = np.asarray(picture.convert("L"))
        except UnidentifiedImageError:  # whose message has no file
            raise UsageError(f"pathfinder: {file}: damaged: no image") from None
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow raises all of them
            raise UsageError(f"pathfinder: {file}: damaged: {error}") from None
        if pixels.shape != (side, side):
            size = " x ".join(map(str, pixels.shape))
            raise UsageError(f"pathfinder: {file}: an image of {size}, not {side} x {side}; change side and seq_len")
        image[:] = pixels
    return images, labels[first:end]
