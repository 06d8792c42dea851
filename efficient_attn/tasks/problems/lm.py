"""Language modelling, a byte a token: the next byte of real text at every position, in bits a byte (as in Sparse
Transformers, Child et al. 2019, arXiv:1904.10509, with larger texts)."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, LearnKeys, Problem, Recipe, Split
from .documents import N_PARTS, read_documents, split_documents
from .text_models import compute_compressed_bits, compute_ngram_bits

MAX_BASELINE_BYTES = 1 << 25  # of a text, or of the examples of a training, that n-grams and compression use


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
    return _compute_baselines(keys.text)


@lru_cache(4)
def _compute_baselines(text: str) -> Baselines:
    """Bits a byte on the tests' text, of which models read excerpts, by n-grams and a compressor."""
    train, test = (read_splits(text)[split][:MAX_BASELINE_BYTES] for split in ("train", "test"))
    bits = compute_ngram_bits([train], test)
    compressed = {"lzma after the training text": compute_compressed_bits(train.tobytes(), test.tobytes())}
    return Baselines(
        chance=8.0,
        majority=bits[0],
        shortcuts=_name_contexts(bits, "all training text") | compressed,
        caveat="How often bytes follow the last few is enough for such a score, so the task does not show that models"
        " above it use longer contexts.",
    )


def fit_shortcuts(keys: LmKeys, batches: Iterable[Batch]) -> dict[str, float]:
    """Bits a byte on the tests by n-grams of the excerpts that a model was trained on, up to `MAX_BASELINE_BYTES`."""
    excerpts, n_bytes = [], 0
    for batch in batches:
        excerpts.append(np.hstack([batch.inputs, batch.targets[:, -1:]]).astype(np.uint8))
        n_bytes += excerpts[-1].size
        if n_bytes >= MAX_BASELINE_BYTES:
            break
    bits = compute_ngram_bits(excerpts, read_splits(keys.text)["test"][:MAX_BASELINE_BYTES])
    return _name_contexts(bits, "the bytes seen")


def _name_contexts(bits: Sequence[float], source: str) -> dict[str, float]:
    return {f"{n} {'byte' if n == 1 else 'bytes'} of context in {source}": bits[n] for n in range(1, len(bits))}


LM = Problem(
    name="lm",
    keys=LmKeys,
    recipe=Recipe(model="decoder", layers=2, positions="rotary", steps=12000, batch=16, solved=0.0),
    draw=draw,
    check=check,
    inputs=lambda keys: 256,
    outputs=lambda keys: 256,
    baselines=baselines,
    fit_shortcuts=fit_shortcuts,
    metric="bits",
)
