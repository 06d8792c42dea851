"""Models of text: n-grams compared with counts of contexts in dictionaries, and compressed sizes with differences."""

from __future__ import annotations

import lzma
from collections import Counter, defaultdict
from math import log2
from typing import Any

import numpy as np
import pytest

from efficient_attn.tasks.problems.text_models import MAX_CONTEXT, compute_compressed_bits, compute_ngram_bits

WORDS = ["salt", "sea", "ship", "shore", "s\xe9a", "\xff\xfe", "\x00\x00"]


def _write(count: int, seed: int, words: int = len(WORDS)) -> bytes:
    return " ".join(np.random.default_rng(seed).choice(WORDS[:words], count).tolist()).encode("latin-1")


def _as_array(text: bytes) -> Any:
    return np.frombuffer(text, np.uint8)


def _count(texts: list[bytes], test: bytes) -> list[float]:
    """Bits a byte from dictionaries of contexts."""
    counts: list[defaultdict[bytes, Counter[int]]] = [defaultdict(Counter) for _ in range(MAX_CONTEXT + 1)]
    for text in texts:
        for order in range(MAX_CONTEXT + 1):
            for i in range(order, len(text)):
                counts[order][text[i - order : i]][text[i]] += 1

    def estimate(i: int, order: int) -> float:
        if order < 0:
            return 1 / 256
        followers = counts[order][test[i - order : i]]
        n_different, below = len(followers) if order else 256, estimate(i, order - 1)
        total = followers.total() + n_different
        return (followers[test[i]] + n_different * below) / total if total else below

    return [
        sum(-log2(estimate(i, min(i, order))) for i in range(len(test))) / len(test) for order in range(MAX_CONTEXT + 1)
    ]


@pytest.mark.parametrize("test", [_write(60, 1), b"xylophone", b"s", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"])
def test_ngrams_match_dictionaries(test: bytes) -> None:
    train = _write(300, 0)
    assert compute_ngram_bits([_as_array(train)], _as_array(test)) == pytest.approx(_count([train], test), rel=1e-12)


def test_contexts_do_not_span_excerpts() -> None:
    texts = [_write(20, seed)[:length] for seed, length in ((2, 40), (3, 40), (4, 40), (5, 9), (6, 3), (7, 1))]
    excerpts = [np.stack([_as_array(text) for text in texts[:3]]), *map(_as_array, texts[3:])]
    test = _write(60, 1)
    assert compute_ngram_bits(excerpts, _as_array(test)) == pytest.approx(_count(texts, test), rel=1e-12)
    assert compute_ngram_bits(excerpts, _as_array(test)) != compute_ngram_bits(
        [_as_array(b"".join(texts))], _as_array(test)
    )


def test_probabilities_of_all_bytes_sum_to_one() -> None:
    train, context = _as_array(_write(300, 0)), _write(10, 1)
    n, bits = len(context), np.array(compute_ngram_bits([train], _as_array(context)))
    longer = np.array([compute_ngram_bits([train], _as_array(context + bytes([byte]))) for byte in range(256)])
    assert np.exp2(n * bits - (n + 1) * longer).sum(0) == pytest.approx(1, abs=1e-9)


def test_compression_uses_the_training_text() -> None:
    train, test = _write(30_000, 0), _write(6000, 1)
    options: Any = {"format": lzma.FORMAT_XZ, "check": lzma.CHECK_NONE}
    alone, before, both = (len(lzma.compress(text, **options)) for text in (test, train, train + test))
    bits = compute_compressed_bits(train, test)
    assert bits == pytest.approx(8 * (both - before) / len(test), rel=0.02)
    assert bits < 8 * alone / len(test)
    entropy = log2(len(WORDS)) / (len(train) / 30_000)
    assert entropy < bits < 1.5 * entropy


def test_copies_of_far_training_text_are_found() -> None:
    """In a dictionary that is larger than the default one of the level, 8 MiB."""
    far = np.random.default_rng(0).bytes(20_000)
    assert compute_compressed_bits(far + bytes(9 << 20), far) < 0.1


@pytest.mark.parametrize(("train", "test"), [(b"", b"a"), (b"a", b"b"), (b"a" * 70, b"b" * 70)])
def test_tiny_texts_have_a_compressed_size(train: bytes, test: bytes) -> None:
    assert 0 <= compute_compressed_bits(train, test) < 8 * (40 + len(test))
