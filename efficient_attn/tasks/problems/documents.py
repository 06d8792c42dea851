"""Documents of real text, split as wholes into training, validation and tests."""

import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...integrations.texts import Text
from ..training.problem import Array, Split

PYTHON = "python"
MAX_LIBRARY_BYTES = 4_000_000
N_PARTS = 10  # one is for tests and one for validation


@lru_cache(4)
def read_documents(text: str) -> tuple[bytes, ...]:
    """The documents of ``sotu``, ``python`` or a file. Raises `UsageError` for a missing file, or one that is not
    text."""
    return _read_library() if text == PYTHON else tuple(document.encode() for document in Text.find(text).documents)


def split_documents(documents: Sequence[bytes]) -> dict[Split, list[bytes]]:
    """A tenth of the documents for tests, and a tenth for validation, drawn once, each part in the given order."""
    order, tenth = np.random.default_rng(0).permutation(len(documents)), len(documents) // N_PARTS
    validation, test, train = np.split(order, [tenth, 2 * tenth])
    parts: dict[Split, Array] = {"train": train, "validation": validation, "test": test}
    return {split: [documents[i] for i in sorted(indices)] for split, indices in parts.items()}


def _read_library() -> tuple[bytes, ...]:
    """The first modules of Python's standard library by name, up to `MAX_LIBRARY_BYTES`."""
    sources, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        sources.append(path.read_bytes())
        size += len(sources[-1])
        if size > MAX_LIBRARY_BYTES:
            return tuple(sources[:-1])
    return tuple(sources)
