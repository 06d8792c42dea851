"""Models of text without attention, in bits a byte: interpolated n-grams, and a compressor."""

import lzma
from collections.abc import Sequence

import numpy as np

from ..training.problem import Array

MAX_CONTEXT = 6  # bytes, which with the next one fit into 64 bits
MIN_DICTIONARY_BYTES = 4096  # of LZMA


def compute_ngram_bits(excerpts: Sequence[Array], test: Array) -> list[float]:
    """Bits a byte of the test ``[M]`` by n-grams with 0 to `MAX_CONTEXT` bytes of context, counted in excerpts, each
    ``[S, L]`` or ``[L]``, all of uint8.

    A context with n occurrences and t different successors gives t / (n + t) to the next shorter one (Witten & Bell
    1991), at last 1 / 256 to each byte. The first bytes of the test have fewer before them.
    """
    p, bits = np.full(len(test), 1 / 256), []
    for order in range(MAX_CONTEXT + 1):
        p[order:] = _interpolate(order, excerpts, test, p[order:])
        bits.append(float(-np.log2(p).mean()))
    return bits


def _interpolate(order: int, excerpts: Sequence[Array], test: Array, shorter: Array) -> Array:
    """Probabilities of the test's bytes from ``order`` on. shorter: those by the next shorter context."""
    # a sequence's last byte is the successor, so that sequences with the same context are adjacent
    sequences, counts = np.unique(np.concatenate([_pack(x, order).ravel() for x in excerpts]), return_counts=True)
    count_before = np.concatenate([[0], np.cumsum(counts)])
    queries, index = np.unique(_pack(test, order), return_inverse=True)
    last = queries | np.uint64(255)
    begin, end = np.searchsorted(sequences, last - np.uint64(255)), np.searchsorted(sequences, last, "right")
    at, after = np.searchsorted(sequences, queries), np.searchsorted(sequences, queries, "right")
    n_occurrences, n_followed = count_before[end] - count_before[begin], count_before[after] - count_before[at]
    n_successors = end - begin if order else np.full(len(queries), 256)  # without context all bytes are possible
    total = n_occurrences + n_successors
    weighted = n_followed[index] + n_successors[index] * shorter
    return np.where(total[index] > 0, weighted / np.maximum(total, 1)[index], shorter)


def _pack(text: Array, order: int) -> Array:
    """Each byte of ``[.., L]`` with ``order`` bytes before it as one number, ``[.., L - order]``."""
    length = max(0, text.shape[-1] - order)
    packed = np.zeros((*text.shape[:-1], length), np.uint64)
    for i in range(order + 1):
        packed = packed << np.uint64(8) | text[..., i : i + length]
    return packed


def compute_compressed_bits(train: bytes, test: bytes) -> float:
    """Bits a byte of the test by LZMA after the training text: both are compressed as one stream, of level 6 with a
    dictionary that holds both, and what follows the bytes from which the training text is decoded counts."""
    dictionary_bytes = max(MIN_DICTIONARY_BYTES, len(train) + len(test))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": dictionary_bytes}]
    stream = lzma.compress(train + test, format=lzma.FORMAT_RAW, filters=filters)
    begin, n_read = 0, 0
    for step in (4096, 1):  # the second time byte by byte from shortly before the end of the training text
        decoder, n_read = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=filters), begin
        n_decoded = len(decoder.decompress(stream[:begin]))
        while n_decoded < len(train):
            begin = n_read
            n_decoded += len(decoder.decompress(stream[n_read : n_read + step]))
            n_read += step
    return 8 * (len(stream) - n_read) / len(test)
