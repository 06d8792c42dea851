"""Matching: excerpts are searched in their documents, and their positions do not depend on the label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.documents import read_documents, split_documents
from efficient_attn.tasks.problems.matching import MATCHING, MatchingKeys, compute_scores
from efficient_attn.tasks.training.problem import Array

LENGTH = 40


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> MatchingKeys:
    """Forty documents of 300 bytes and one that is too short for two excerpts; each number occurs once."""
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    documents = ["".join(f"{1000 * i + j:06}" for j in range(50)) for i in range(40)]
    path.write_text("".join(f"\fdocument\n{text}" for text in [*documents, "x" * (2 * LENGTH - 1)]), "utf-8")
    return MatchingKeys(text=str(path))


def _locate(keys: MatchingKeys, split: str, excerpts: Array) -> list[tuple[int, int]]:
    """The document of each excerpt among all, and its position there."""
    documents = split_documents(read_documents(keys.text))[split]  # type: ignore[index]
    located = []
    for excerpt in excerpts:
        text = bytes(excerpt.tolist())
        ((index, start),) = [(i, d.find(text)) for i, d in enumerate(documents) if text in d]
        located.append((index, start))
    return located


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_labels_are_whether_excerpts_are_from_one_document(keys: MatchingKeys, split: str) -> None:
    MATCHING.check(keys, LENGTH)
    batch = MATCHING.draw(keys, LENGTH, 200, np.random.default_rng(0), split)  # type: ignore[arg-type]
    assert batch.inputs.shape == (200, 2, LENGTH)
    assert batch.targets.sum() == 100
    for excerpts, label in zip(batch.inputs, batch.targets, strict=True):
        (first, start), (second, other_start) = _locate(keys, split, excerpts)
        assert (first == second) == label
        assert first != second or abs(start - other_start) >= LENGTH


def test_positions_do_not_depend_on_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """In documents whose bytes are positions: histograms of both excerpts, and the share of which the first is later.
    Otherwise two beginnings of documents, for example, would never be from the same one."""
    corpora = {"train": (np.tile(np.arange(200), 9), np.arange(0, 1801, 200))}
    monkeypatch.setattr("efficient_attn.tasks.problems.matching.read_corpora", lambda text, length: corpora)
    batch = MATCHING.draw(MatchingKeys(), 20, 40_000, np.random.default_rng(0), "train")
    same, different = (batch.inputs[batch.targets == label, :, 0] for label in (1, 0))
    for index in range(2):
        shares = [np.histogram(starts[:, index], 10, (0, 181))[0] / len(starts) for starts in (same, different)]
        assert min(shares[0]) > 0.08
        assert np.abs(shares[0] - shares[1]).max() < 5 * (0.1 * 2 / len(same)) ** 0.5
    later = [(starts[:, 0] > starts[:, 1]).mean() for starts in (same, different)]
    assert later == pytest.approx([0.5, 0.5], abs=5 * (0.25 / len(same)) ** 0.5)


def test_baselines_use_the_words_of_both_excerpts() -> None:
    pytest.importorskip("sklearn")
    scores = compute_scores(MatchingKeys(), 1000)
    assert list(scores) == [
        "logistic regression on common words",
        "logistic regression on weighted words",
    ]
    overlap, weighted = scores.values()
    assert 0.58 < overlap < weighted < 0.7
    baselines = MATCHING.baselines(MatchingKeys(), 1000)
    assert (max(baselines.shortcuts.values()), baselines.chance, baselines.majority) == (weighted, 0.5, 0.5)


def test_too_few_long_documents_are_refused(keys: MatchingKeys, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the train part of .*mine.txt has 0 such documents; pairs of 151 bytes need"):
        MATCHING.check(keys, 151)
    path = tmp_path / "one.txt"
    path.write_text("a" * 10_000)
    with pytest.raises(UsageError, match=r"the train part of .*one.txt has 1 such documents"):
        MATCHING.check(MatchingKeys(text=str(path)), 100)
