"""Language modelling, a byte a token: the next byte of real text at every position, in bits a byte (as in Sparse
Transformers, Child et al. 2019, arXiv:1904.10509, with larger texts)."""

from functools import lru_cache
from itertools import pairwise

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, LearnKeys, Problem, Recipe, Split
from .documents import N_PARTS, read_documents, split_documents


class LmKeys(LearnKeys):
    """text: ``sotu``, the bundled addresses; ``python``, the sources of Python's standard library, which depend on its
    version; or your text file, ``.txt``, also ``.xz``."""

    text: str = "sotu"


def check(keys: LmKeys, length: int) -> None:
    for split, corpus in read_splits(keys.text).items():
        if len(corpus) <= length:
            needed = f"a length of {length} needs more"
            raise UsageError(f"lm: the {split} part of {keys.text} has {len(corpus)} bytes, {needed}")


@lru_cache(4)
def read_splits(text: str) -> dict[Split, Array]:
    """The bytes of each split, as whole documents: a tenth for tests, a tenth for validation, drawn once; a text of
    fewer than ten is cut into ten. Raises `UsageError` for a missing file, or one that is not text."""
    documents = read_documents(text)
    if len(documents) < N_PARTS:
        text_bytes = b"\n".join(documents)
        ends = [i * len(text_bytes) // N_PARTS for i in range(N_PARTS + 1)]
        documents = [text_bytes[start:end] for start, end in pairwise(ends)]
    return {split: np.frombuffer(b"\n".join(part), np.uint8) for split, part in split_documents(documents).items()}


def draw(keys: LmKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Bytes ``[B, N]`` from random positions of the split, maybe of two documents, and as targets the next bytes."""
    corpus = read_splits(keys.text)[split]
    starts = generator.integers(len(corpus) - length, size=(count, 1))
    excerpts = corpus[starts + np.arange(length + 1)].astype(np.int64)
    return Batch(excerpts[:, :-1], excerpts[:, 1:])


def baselines(keys: LmKeys, length: int) -> Baselines:
    bytes_alone, contexts = _compute_entropies(keys.text)
    return Baselines(chance=8.0, majority=bytes_alone, shortcut=contexts, way="the two bytes before")


@lru_cache(4)
def _compute_entropies(text: str) -> tuple[float, float]:
    """Bits a byte on the tests, by byte frequencies, and by what followed the last two bytes in training. A context
    with n occurrences and t successors gives t / (n + t) to the shorter one (Witten & Bell 1991), at last 1 a byte."""
    train, test = read_splits(text)["train"], read_splits(text)["test"]
    vocabulary = np.unique(train)
    n_codes = len(vocabulary) + 1  # the last is for bytes that do not occur in training
    codes = np.full(256, n_codes - 1)
    codes[vocabulary] = np.arange(n_codes - 1)
    train_codes, test_codes = codes[train], codes[test]
    byte_probabilities = (np.bincount(train_codes, minlength=n_codes) + 1) / (len(train_codes) + 256)
    unigram_p, p = byte_probabilities[test_codes], byte_probabilities[test_codes[2:]]
    for order in (1, 2):
        pairs = sum(train_codes[i : len(train_codes) - order + i] * n_codes ** (order - i) for i in range(order + 1))
        counts = np.bincount(pairs, minlength=n_codes ** (order + 1)).reshape(-1, n_codes)
        begin, end = 2 - order, len(test_codes) - order
        context = sum(test_codes[begin + i : end + i] * n_codes ** (order - 1 - i) for i in range(order))
        n_seen, n_followers = counts.sum(1)[context], np.count_nonzero(counts, axis=1)[context]
        followed = counts[context, test_codes[2:]] + n_followers * p
        p = np.where(n_seen > 0, followed / np.maximum(n_seen + n_followers, 1), p)
    return float(-np.log2(unigram_p).mean()), float(-np.log2(p).mean())


LM = Problem(
    name="lm",
    keys=LmKeys,
    recipe=Recipe(model="decoder", layers=2, positions="rotary", steps=800, batch=16, solved=0.0),
    draw=draw,
    check=check,
    inputs=lambda keys: 256,
    outputs=lambda keys: 256,
    baselines=baselines,
    metric="bits",
)
