"""Language modelling of bytes: the splits, and models of the text without attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems import lm
from efficient_attn.tasks.problems.lm import LM, LmKeys, read_splits
from efficient_attn.tasks.problems.text_models import compute_compressed_bits, compute_ngram_bits
from efficient_attn.tasks.training.shortcuts import fit_shortcuts


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


def test_baselines_are_those_of_the_whole_text(text_file: str) -> None:
    train, test = (read_splits(text_file)[split] for split in ("train", "test"))
    baselines, bits = LM.baselines(LmKeys(text=text_file), 64), compute_ngram_bits([train], test)
    assert (baselines.chance, baselines.majority) == (8, bits[0])
    compressed = compute_compressed_bits(train.tobytes(), test.tobytes())
    assert baselines.shortcuts == {
        "1 byte of context in all training text": bits[1],
        **{f"{n} bytes of context in all training text": bits[n] for n in range(2, 7)},
        "lzma after the training text": compressed,
    }


@pytest.mark.parametrize("lengths", [(64, 64, 64), (64, 5, 3)])
def test_shortcuts_are_fitted_to_the_bytes_seen(
    text_file: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, test = LmKeys(text=text_file), read_splits(text_file)["test"]
    batches = [LM.draw(keys, n, 20, np.random.default_rng(i), "train") for i, n in enumerate(lengths)]
    excerpts = [np.hstack([b.inputs, b.targets[:, -1:]]).astype(np.uint8) for b in batches]
    bits = compute_ngram_bits(excerpts, test)
    shortcuts = LM.fit_shortcuts(keys, iter(batches))
    assert list(shortcuts.values()) == bits[1:]
    assert list(shortcuts)[2] == "3 bytes of context in the bytes seen"
    monkeypatch.setattr(lm, "MAX_BASELINE_BYTES", len(test))
    few = iter(batches)
    assert list(LM.fit_shortcuts(keys, few).values()) == compute_ngram_bits(excerpts[:1], test)[1:]
    assert len(list(few)) == 2  # further batches are not drawn


def test_the_python_text_has_a_limited_size() -> None:
    parts = read_splits("python")
    assert 2e6 < sum(map(len, parts.values())) <= 4.1e6
    assert min(map(len, parts.values())) > 1e5
    assert b"import" in parts["test"].tobytes()


@pytest.mark.slow
def test_baselines_of_the_default_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm, "compute_compressed_bits", lambda train, test: 1.8)  # takes 10 s
    lm._compute_baselines.cache_clear()
    baselines = LM.baselines(LmKeys(), 256)
    lm._compute_baselines.cache_clear()
    assert baselines.majority == pytest.approx(4.35, abs=0.1)
    bits = [baselines.shortcuts[f"{n} bytes of context in all training text"] for n in range(2, 7)]
    assert bits == pytest.approx([2.706, 2.068, 1.726, 1.602, 1.574], abs=0.001)


@pytest.mark.slow
def test_shortcuts_of_450_steps_of_the_default_text() -> None:
    shortcuts = fit_shortcuts(LM, LmKeys(), 128, 0, 450)
    bits = [shortcuts[f"{n} bytes of context in the bytes seen"] for n in range(2, 7)]
    assert bits == pytest.approx([2.724, 2.124, 1.843, 1.794, 1.849], abs=0.001)


def test_a_text_shorter_than_the_length_is_refused(text_file: str) -> None:
    with pytest.raises(
        UsageError, match=r"the validation part of .*mine.txt has \d+ bytes, a length of 1024 needs more"
    ):
        LM.check(LmKeys(text=text_file), 1024)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UsageError, match="no such file"):
        LM.check(LmKeys(text="nowhere.txt"), 64)
