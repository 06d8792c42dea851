"""Matching: whether two excerpts of real text are from the same document, for example from one speech. The form is that
of Long Range Arena's retrieval (Tay et al. 2020, arXiv:2011.04006): one encoder reads each text by itself, byte by
byte, and a classifier reads both results. Its own pairs of papers are read from files with ``data``."""

from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, LearnKeys, Problem, Recipe, Split
from .byte_texts import PAD, pad_texts
from .documents import read_documents, split_documents
from .logistic_scores import score_logistic_regression
from .matching_files import FILES, TextPairs, read_pairs
from .scikit_learn import import_part

BASELINE_PAIRS = 2000  # to which baselines are fitted, and as many on which they are tested
CAVEAT = "Counting common words reaches such a score, so the task does not show that models read more than that."


class MatchingKeys(LearnKeys):
    """text: ``sotu``, the bundled addresses; ``python``, the modules of Python's standard library; or your text file,
    ``.txt``, also ``.xz``, with a form feed before each document. Documents are split, so that tests have others than
    training. data: a folder with LRA's ``new_aan_pairs.train.tsv``, ``new_aan_pairs.eval.tsv`` and
    ``new_aan_pairs.test.tsv``, whose pairs replace those of ``text``."""

    text: str = "sotu"
    data: str | None = None


def check(keys: MatchingKeys, length: int) -> None:
    if keys.data is not None:
        for split in FILES:
            read_pairs(keys.data, length, split)
        return
    for split, (_, starts) in read_corpora(keys.text, length).items():
        if len(starts) < 3:
            needed = f"pairs of {length} bytes need two of at least {2 * length}"
            raise UsageError(
                f"matching: the {split} part of {keys.text} has {len(starts) - 1} such documents; {needed}"
            )


@lru_cache(4)
def read_corpora(text: str, length: int) -> dict[Split, tuple[Array, Array]]:
    """By split, the bytes of all documents from which two excerpts of a length can be cut that do not overlap, and
    where each document begins, with the end of the last."""
    corpora: dict[Split, tuple[Array, Array]] = {}
    for split, documents in split_documents(read_documents(text)).items():
        long_documents = [document for document in documents if len(document) >= 2 * length]
        starts = np.cumsum([0, *map(len, long_documents)])
        corpora[split] = np.frombuffer(b"".join(long_documents), np.uint8), starts
    return corpora


def draw(keys: MatchingKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Pairs of excerpts ``[B, 2, N]`` and labels ``[B]``: 1, for half of them, if they are from one document. From
    files, the beginnings of papers, padded at their ends; at most all pairs, each once.

    Two excerpts that do not overlap are drawn in each of two documents. A pair has the earlier one of the first
    document, and the later one of the same or of the second, in random order: an excerpt, or where it was in its
    document, does not depend on the label.
    """
    if keys.data is not None:
        return _draw_pairs(read_pairs(keys.data, length, split), length, count, generator)
    corpus, starts = read_corpora(keys.text, length)[split]
    sizes, labels = np.diff(starts), generator.permutation(np.arange(count) % 2)
    first = generator.integers(len(sizes), size=count)
    second = (first + generator.integers(1, len(sizes), size=count)) % len(sizes)
    documents = np.stack([first, np.where(labels, first, second)], 1)
    offsets = generator.integers((sizes[documents] - 2 * length + 1)[..., None], size=(count, 2, 2))
    offsets[labels == 1, 1] = offsets[labels == 1, 0]
    offsets.sort(axis=2)
    chosen = starts[documents] + np.stack([offsets[:, 0, 0], offsets[:, 1, 1] + length], 1)
    chosen = generator.permuted(chosen, axis=1)
    return Batch(corpus[chosen[..., None] + np.arange(length)].astype(np.int64), labels)


def _draw_pairs(data: TextPairs, length: int, count: int, generator: np.random.Generator) -> Batch:
    rows = generator.permutation(len(data.labels))[:count]
    inputs, lengths = pad_texts([data.texts[i] for i in data.pairs[rows].flat], length)
    return Batch(inputs.reshape(-1, 2, length), data.labels[rows], lengths=lengths.reshape(-1, 2))


def compute_scores(keys: MatchingKeys, length: int) -> dict[str, float]:
    """Accuracy of logistic regression on how similar the words of both excerpts are. Raises `NotInstalled` without
    scikit-learn."""
    features = import_part("feature_extraction.text", "the shortcuts of matching")
    train, test = (
        draw(keys, length, BASELINE_PAIRS, np.random.default_rng(0), "train"),
        draw(keys, length, BASELINE_PAIRS, np.random.default_rng(1), "test"),
    )
    texts = [[x.tobytes() for x in b.inputs.astype(np.uint8).reshape(-1, length)] for b in (train, test)]
    vectorizer = features.CountVectorizer(decode_error="ignore")
    counts = [vectorizer.fit_transform(texts[0]), vectorizer.transform(texts[1])]
    weighting = features.TfidfTransformer(sublinear_tf=True).fit(counts[0])
    similarities = {
        "common words": [_compute_overlaps(x > 0) for x in counts],
        "weighted words": [_multiply_pairs(weighting.transform(x)) for x in counts],
    }
    return {
        f"logistic regression on {name}": score_logistic_regression(x, train.targets, y, test.targets)
        for name, (x, y) in similarities.items()
    }


def _multiply_pairs(vectors: Any) -> Array:
    """The dot product of every even row of a sparse matrix with the next one, ``[S, 1]``."""
    return np.asarray(vectors[::2].multiply(vectors[1::2]).sum(1)).reshape(-1, 1)


def _compute_overlaps(words: Any) -> Array:
    """The share of words in both texts of those in either, ``[S, 1]``, from a sparse bool matrix of words by text."""
    common, sizes = _multiply_pairs(words.astype(int)), np.asarray(words.sum(1)).reshape(-1, 2)
    return common / np.maximum(sizes.sum(1, keepdims=True) - common, 1)


def baselines(keys: MatchingKeys, length: int) -> Baselines:
    majority = 0.5
    if keys.data is not None:
        majority = float(read_pairs(keys.data, length, "test").labels.mean())
    majority = max(majority, 1 - majority)
    return Baselines(chance=0.5, majority=majority, shortcuts=compute_scores(keys, length), caveat=CAVEAT)


MATCHING = Problem(
    name="matching",
    keys=MatchingKeys,
    recipe=Recipe(model="pair", layers=2, positions="rotary", steps=1000, batch=16, learning_rates=(1e-3, 2.5e-4)),
    draw=draw,
    check=check,
    inputs=lambda keys: PAD + 1,
    outputs=lambda keys: 2,
    baselines=baselines,
)
