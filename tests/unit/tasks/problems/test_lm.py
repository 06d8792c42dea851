"""Language modelling of bytes: the splits, and baselines compared with counts of contexts."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import log2
from pathlib import Path

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.lm import LM, LmKeys, read_splits


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Thirty documents, of which only some have an umlaut."""
    generator = np.random.default_rng(0)
    words = [" ".join(generator.choice(["salt", "sea", "ship", "shore"], 40).tolist()) for _ in range(30)]
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    path.write_text("".join(f"\fdocument {i}\n{i:02} {'ä' * (i % 3)} {text}" for i, text in enumerate(words)), "utf-8")
    return str(path)


def test_targets_are_the_next_bytes(text_file: str) -> None:
    keys = LmKeys(text=text_file)
    LM.check(keys, 64)
    batch = LM.draw(keys, 64, 20, np.random.default_rng(0), "train")
    assert batch.inputs.shape == batch.targets.shape == (20, 64)
    assert (batch.inputs[:, 1:] == batch.targets[:, :-1]).all()
    whole = read_splits(text_file)["train"].tobytes()
    for tokens, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert bytes([*tokens, targets[-1]]) in whole
    again, other = (LM.draw(keys, 64, 20, np.random.default_rng(seed), "train") for seed in (0, 1))
    assert (again.inputs == batch.inputs).all()
    assert (other.inputs != batch.inputs).any()


def test_each_document_is_in_one_split(text_file: str) -> None:
    numbers = [{line[:2] for line in part.tobytes().split(b"\n")} for part in read_splits(text_file).values()]
    assert [len(split) for split in numbers] == [24, 3, 3]
    assert len(set.union(*numbers)) == 30


def test_a_single_document_is_split_by_pieces(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_bytes(bytes(range(65, 115)) * 20)
    parts = read_splits(str(path))
    assert [len(part) for part in parts.values()] == [800 + 7, 100, 100]  # line breaks between its pieces


def test_baselines_match_counts_of_contexts(text_file: str) -> None:
    train, test = (read_splits(text_file)[split].tobytes() for split in ("train", "test"))
    counts: list[defaultdict[bytes, Counter[int]]] = [defaultdict(Counter) for _ in range(3)]
    for order in range(3):
        for i in range(order, len(train)):
            counts[order][train[i - order : i]][train[i]] += 1

    def chance(i: int, order: int) -> float:
        if order < 0:
            return 1 / 256
        seen = counts[order][test[i - order : i]]
        different = 256 if order == 0 else len(seen)
        below = chance(i, order - 1)
        return (seen[test[i]] + different * below) / (seen.total() + different) if seen.total() else below

    baselines = LM.baselines(LmKeys(text=text_file), 64)
    assert baselines.chance == 8
    assert baselines.majority == pytest.approx(np.mean([-log2(chance(i, 0)) for i in range(len(test))]))
    assert baselines.shortcut == pytest.approx(np.mean([-log2(chance(i, 2)) for i in range(2, len(test))]))


def test_the_python_text_has_a_limited_size() -> None:
    parts = read_splits("python")
    assert 2e6 < sum(map(len, parts.values())) <= 4.1e6
    assert min(map(len, parts.values())) > 1e5
    assert b"import" in parts["test"].tobytes()


@pytest.mark.slow
def test_baselines_of_the_default_text() -> None:
    baselines = LM.baselines(LmKeys(), 256)
    assert baselines.majority == pytest.approx(4.35, abs=0.1)
    assert baselines.shortcut == pytest.approx(2.7, abs=0.1)


def test_a_text_shorter_than_the_length_is_refused(text_file: str) -> None:
    with pytest.raises(
        UsageError, match=r"the validation part of .*mine.txt has \d+ bytes, a length of 1024 needs more"
    ):
        LM.check(LmKeys(text=text_file), 1024)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UsageError, match="no such file"):
        LM.check(LmKeys(text="nowhere.txt"), 64)
