"""Read Long Range Arena's files of ListOps: lines of source, tab and target, with tokens separated by spaces. Round
brackets, which only group, are left out."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Split
from .expressions import CLOSE, MIN, PAD, SM

FILES: dict[Split, str] = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
LETTERS = ((b"[MIN", b"a"), (b"[MAX", b"b"), (b"[MED", b"c"), (b"[SM", b"d"))
CODES = np.full(256, PAD, dtype=np.uint8)
CODES[np.frombuffer(b"0123456789abcd]", np.uint8)] = np.arange(PAD)


@lru_cache(6)
def read_rows(folder: str, split: Split) -> tuple[list[Array], Array]:
    """The rows of one of LRA's files as tokens, and their labels. Raises `UsageError` with file and line for another
    format, a truncated file, or a label that is not from 0 to 9."""
    path = Path(folder) / FILES[split]
    if not path.is_file():
        raise UsageError(f"listops: {path}: no such file")
    rows, labels = list[Array](), list[int]()
    with path.open("rb") as lines:  # line by line, because a file has hundreds of megabytes
        if lines.readline().rstrip(b"\r\n") != b"Source\tTarget":
            raise UsageError(f"listops: {path}:1: the header is not Source and Target, separated by a tab")
        for number, line in enumerate(lines, 2):
            source, tab, label = line.rstrip(b"\r\n").partition(b"\t")
            try:
                rows.append(_parse(source))
                if not tab or len(label) != 1 or not label.isdigit():
                    raise ValueError("no label from 0 to 9 after a tab")
                labels.append(int(label))
            except ValueError as error:
                raise UsageError(f"listops: {path}:{number}: {error}") from None
    if not rows:
        raise UsageError(f"listops: {path}:2: the file ends after its header")
    return rows, np.array(labels)


def _parse(source: bytes) -> Array:
    """The tokens of a row, which is translated as a whole, because a file has up to a hundred million tokens."""
    if any(letter in source for letter in b"abcd"):
        raise ValueError("an unknown token")
    for name, letter in LETTERS:
        source = source.replace(name, letter)
    tokens = CODES[np.frombuffer(source.translate(None, b" ()"), np.uint8)]
    if len(tokens) + source.count(b"(") + source.count(b")") != source.count(b" ") + 1 or (tokens == PAD).any():
        raise ValueError("an unknown token, or tokens that no space separates")
    if not len(tokens):
        raise ValueError("no token but round brackets")
    depth = np.cumsum((tokens >= MIN) & (tokens <= SM)) - np.cumsum(tokens == CLOSE)
    if depth[-1] or (len(tokens) > 1 and (depth[:-1] < 1).any()):
        raise ValueError("brackets that do not close: is the line cut off?")
    return tokens
