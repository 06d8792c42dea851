"""IMDb's reviews: cut bytes, both classes, validation from the tests, and missing files."""

from __future__ import annotations

from pathlib import Path

import lra_files
import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.byte_texts import PAD
from efficient_attn.tasks.problems.imdb import IMDB, ImdbKeys, read_reviews

LENGTH = 64


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> ImdbKeys:
    return ImdbKeys(data=str(lra_files.write_reviews(tmp_path_factory.mktemp("aclImdb"))))


@pytest.mark.parametrize(("split", "part"), [("train", b"train"), ("validation", b"test"), ("test", b"test")])
def test_draws_are_reviews_of_a_part_with_their_labels(keys: ImdbKeys, split: str, part: bytes) -> None:
    IMDB.check(keys, 400)
    batch = IMDB.draw(keys, 400, 1000, np.random.default_rng(0), split)  # type: ignore[arg-type]
    assert batch.inputs.shape == (80, 400)
    assert batch.lengths is not None
    texts = [bytes(row[:n].tolist()) for row, n in zip(batch.inputs, batch.lengths, strict=True)]
    assert len(set(texts)) == 80
    assert all(text.split()[-2] == part for text in texts)
    assert [b" vivid " in text for text in texts] == (batch.targets == 1).tolist()
    assert ((batch.inputs == PAD) == (np.arange(400) >= batch.lengths[:, None])).all()


def test_texts_are_cut_at_the_length(keys: ImdbKeys) -> None:
    batch = IMDB.draw(keys, LENGTH, 1000, np.random.default_rng(0), "train")
    assert batch.lengths is not None
    assert batch.lengths.max() == LENGTH
    assert batch.inputs.shape[1] == LENGTH
    assert max(map(len, read_reviews(str(keys.data), LENGTH, "train")[0])) == LENGTH


def test_baselines_count_bytes_and_words(keys: ImdbKeys) -> None:
    pytest.importorskip("sklearn")
    baselines = IMDB.baselines(keys, 400)
    assert baselines.majority == 0.5
    assert baselines.shortcuts["logistic regression on words"] > 0.85
    assert baselines.note is not None
    assert "validation" in baselines.note


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data DIR"):
        IMDB.check(ImdbKeys(), LENGTH)
    folder = lra_files.write_reviews(tmp_path, 2)
    for path in (folder / "test" / "pos").iterdir():
        path.unlink()
    with pytest.raises(UsageError, match=r"test/pos: no \.txt files"):
        IMDB.check(ImdbKeys(data=str(folder)), LENGTH)
    (folder / "train" / "neg" / "5_1.txt").mkdir()
    with pytest.raises(UsageError, match=r"train/neg/5_1\.txt: Is a directory"):
        read_reviews(str(folder), LENGTH + 1, "train")
