"""Long Range Arena's pairs of papers: read line by line, cut, each text once; other files are refused with the line."""

from __future__ import annotations

from pathlib import Path

import lra_files
import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.byte_texts import PAD
from efficient_attn.tasks.problems.matching import MATCHING, MatchingKeys
from efficient_attn.tasks.problems.matching_files import read_pairs

GOOD = b"1\tP1\tP2\tone text\tother text\n"


def _write(folder: Path, content: bytes) -> str:
    (folder / "new_aan_pairs.eval.tsv").write_bytes(content)
    return str(folder)


def test_lines_are_pairs_of_cut_bytes(tmp_path: Path) -> None:
    """Quotes, other separators of lines and bytes that are not UTF-8 belong to the text."""
    lines = [b'0.0\tA\tB\t"quoted\x0b\x85\t\xff\xfe\n', b"1\tB\tC\t\xff\xfe\t\r\n", b'1.0\tA\tC\t"quoted else\tx']
    texts, pairs, labels = read_pairs(_write(tmp_path, b"".join(lines)), 7, "validation")
    assert labels.tolist() == [0, 1, 1]
    rows = [(texts[first], texts[second]) for first, second in pairs]
    assert rows == [(b'"quoted', b"\xff\xfe"), (b"\xff\xfe", b""), (b'"quoted', b"x")]
    assert len(texts) == len(set(texts)) == 4


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", 1, "empty"),
        (GOOD + GOOD[:-12], 2, "4 columns, not 5: is the line cut off"),
        (GOOD + b"\n", 2, "1 columns"),
        (GOOD + GOOD[:-1] + b"\textra\n", 2, "6 columns"),
        (b"2" + GOOD[1:], 1, "no label 0 or 1"),
        (b"label\tid1\tid2\ttext1\ttext2\n" + GOOD, 1, "no label 0 or 1"),
    ],
)
def test_invalid_files_are_refused_with_the_line(content: bytes, line: int, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"new_aan_pairs\.eval\.tsv:{line}: .*{reason}"):
        read_pairs(_write(tmp_path, content), 100, "validation")


def test_files_replace_excerpts_of_documents(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    keys = MatchingKeys(data=str(lra_files.write_pairs(tmp_path)))
    MATCHING.check(keys, 40)
    batch = MATCHING.draw(keys, 40, 100, np.random.default_rng(0), "test")
    assert batch.inputs.shape == (60, 2, 40)
    assert batch.lengths is not None
    assert batch.lengths.shape == (60, 2)
    assert ((batch.inputs == PAD) == (np.arange(40) >= batch.lengths[..., None])).all()
    lines = {
        tuple(line.split(b"\t")[3:]): int(line[:1])
        for line in (tmp_path / lra_files.PAIR_FILES["test"]).read_bytes().splitlines()
    }
    for texts, lengths, label in zip(batch.inputs, batch.lengths, batch.targets, strict=True):
        drawn = tuple(bytes(text[:n].tolist()) for text, n in zip(texts, lengths, strict=True))
        (expected,) = [other for pair, other in lines.items() if tuple(text[:40] for text in pair) == drawn]
        assert expected == label
    baselines = MATCHING.baselines(keys, 100)
    assert baselines.majority == 0.5
    assert baselines.shortcuts["logistic regression on common words"] > 0.9
    (tmp_path / lra_files.PAIR_FILES["validation"]).unlink()
    read_pairs.cache_clear()
    with pytest.raises(UsageError, match=r"new_aan_pairs\.eval\.tsv: no such file"):
        MATCHING.check(keys, 40)
