"""Read Long Range Arena's files of pairs of documents (AAN): lines of label, both numbers and both texts, separated by
tabs, without a header or quotes."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Split

FILES: dict[Split, str] = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
COLUMNS = 5  # label, both numbers, both texts


class TextPairs(NamedTuple):
    """Distinct texts, which two of them each pair has ``[S, 2]``, and labels ``[S]``."""

    texts: list[bytes]
    pairs: Array
    labels: Array


@lru_cache(6)
def read_pairs(folder: str, length: int, split: Split) -> TextPairs:
    """The pairs of one of LRA's files, with the first ``length`` bytes of each text, which is stored once however many
    pairs it is in. Raises `UsageError` with file and line for another format, or a label that is not 0 or 1."""
    path = Path(folder) / FILES[split]
    if not path.is_file():
        raise UsageError(f"matching: {path}: no such file")
    indices, pairs, labels = dict[bytes, int](), list[tuple[int, int]](), list[int]()
    with path.open("rb") as lines:  # line by line, because files have gigabytes
        for number, line in enumerate(lines, 1):
            fields = line.rstrip(b"\r\n").split(b"\t")
            if len(fields) != COLUMNS:
                raise UsageError(
                    f"matching: {path}:{number}: {len(fields)} columns, not {COLUMNS}: is the line cut off?"
                )
            if fields[0] not in LABELS:
                raise UsageError(f"matching: {path}:{number}: no label 0 or 1 in the first column")
            first, second = (indices.setdefault(text[:length], len(indices)) for text in fields[3:])
            pairs.append((first, second))
            labels.append(LABELS[fields[0]])
    if not pairs:
        raise UsageError(f"matching: {path}:1: the file is empty")
    return TextPairs(list(indices), np.array(pairs, dtype=np.int32), np.array(labels))
