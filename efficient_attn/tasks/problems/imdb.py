"""IMDb: whether a review of a film is positive, byte by byte, from files: 25,000 for training and 25,000 for tests
(Maas et al. 2011). Long Range Arena's task of text classification (Tay et al. 2020, arXiv:2011.04006)."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from ...errors import UsageError
from ..training.problem import Array, Baselines, Batch, LearnKeys, Problem, Recipe, Split
from .byte_texts import PAD, pad_texts
from .logistic_scores import score_logistic_regression
from .scikit_learn import import_part

FOLDERS: dict[Split, str] = {"train": "train", "validation": "test", "test": "test"}
CLASSES = "neg", "pos"
BASELINE_EXAMPLES = 5000  # to which baselines are fitted, and as many on which they are tested
CAVEAT = "Counting words reaches such a score, so the task does not show that models read more than that."
NOTE = "As in Long Range Arena, validation and tests are drawn from the same reviews, so that scores are optimistic."


class ImdbKeys(LearnKeys):
    """data: the folder ``aclImdb``, with the files ``{train,test}/{pos,neg}/*.txt``."""

    data: str | None = None


def check(keys: ImdbKeys, length: int) -> None:
    for split in ("train", "test"):
        read_reviews(_get_folder(keys), length, split)


def _get_folder(keys: ImdbKeys) -> str:
    if keys.data is None:
        raise UsageError("imdb: reads your files; give the folder aclImdb: --data DIR")
    return keys.data


@lru_cache(4)
def read_reviews(folder: str, length: int, part: str) -> tuple[list[bytes], Array]:
    """The first ``length`` bytes of the reviews in a part, ``train`` or ``test``, negative ones first, and their
    labels. Raises `UsageError` for missing files."""
    texts, labels = list[bytes](), list[int]()
    for label, name in enumerate(CLASSES):
        paths = sorted(Path(folder, part, name).glob("*.txt"))
        if not paths:
            raise UsageError(f"imdb: {Path(folder, part, name)}: no .txt files; give the folder aclImdb: --data DIR")
        for path in paths:
            try:
                with path.open("rb") as file:
                    texts.append(file.read(length))
            except OSError as error:
                raise UsageError(f"imdb: {path}: {error.strerror}") from None
        labels += [label] * len(paths)
    return texts, np.array(labels)


def draw(keys: ImdbKeys, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    """Bytes ``[B, N]`` padded at their ends, and labels ``[B]``, 1 for positive; at most all reviews, each once."""
    texts, labels = read_reviews(_get_folder(keys), length, FOLDERS[split])
    indices = generator.permutation(len(texts))[:count]
    inputs, lengths = pad_texts([texts[i] for i in indices], length)
    return Batch(inputs, labels[indices], lengths=lengths)


def baselines(keys: ImdbKeys, length: int) -> Baselines:
    """Logistic regression on the shares of bytes, and on weighted words. Raises `NotInstalled` without scikit-learn."""
    features = import_part("feature_extraction.text", "the shortcuts of imdb")
    train, test = (
        draw(keys, length, BASELINE_EXAMPLES, np.random.default_rng(seed), split)
        for seed, split in enumerate(("train", "test"))
    )
    rows = [[row[row != PAD] for row in batch.inputs] for batch in (train, test)]
    shares = [np.stack([np.bincount(x, minlength=PAD) / max(1, len(x)) for x in part]) for part in rows]
    texts = [[x.astype(np.uint8).tobytes() for x in part] for part in rows]
    weighting = features.TfidfVectorizer(decode_error="ignore", sublinear_tf=True)
    words = [weighting.fit_transform(texts[0]), weighting.transform(texts[1])]
    classifier = import_part("linear_model", "the shortcuts of imdb").LogisticRegression()
    return Baselines(
        chance=0.5,
        majority=float(np.bincount(test.targets).max() / len(test.targets)),
        shortcuts={
            "logistic regression on bytes": score_logistic_regression(
                shares[0], train.targets, shares[1], test.targets
            ),
            "logistic regression on words": float(
                classifier.fit(words[0], train.targets).score(words[1], test.targets)
            ),
        },
        caveat=CAVEAT,
        note=NOTE,
    )


IMDB = Problem(
    name="imdb",
    keys=ImdbKeys,
    recipe=Recipe(model="encoder", layers=2, positions="rotary", steps=1000, batch=16, learning_rates=(1e-3, 2.5e-4)),
    draw=draw,
    check=check,
    inputs=lambda keys: PAD + 1,
    outputs=lambda keys: 2,
    baselines=baselines,
)
