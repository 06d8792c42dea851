"""Texts as bytes, padded to one length."""

from collections.abc import Sequence

import numpy as np

from ..training.problem import Array

PAD = 256


def pad_texts(texts: Sequence[bytes], length: int) -> tuple[Array, Array]:
    """Tokens ``[B, N]``, at most N bytes of each text and PAD after them, and how many are valid, ``[B]``: at least
    one, so that an empty text is one PAD."""
    tokens = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in zip(tokens, texts, strict=True):
        values = np.frombuffer(text[:length], np.uint8)
        row[: len(values)] = values
    return tokens, np.array([min(max(1, len(text)), length) for text in texts], dtype=np.int64)
