"""ListOps: examples, baselines, and Long Range Arena's numbers at its own sizes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.expressions import PAD, evaluate_expression
from efficient_attn.tasks.problems.listops import LISTOPS, ListopsKeys

KEYS = ListopsKeys()
NAMES = [*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]"]
OFFICIAL = ListopsKeys(depth=10, arguments=10, longer_than=500)
AT_512 = ListopsKeys(depth=6, arguments=8, longer_than=128)


def test_labels_are_the_values_of_padded_rows() -> None:
    LISTOPS.check(KEYS, 48)
    batch = LISTOPS.draw(KEYS, 48, 100, np.random.default_rng(0), "train")
    assert batch.inputs.shape == (100, 48)
    assert batch.lengths is not None
    for tokens, length, label in zip(batch.inputs, batch.lengths, batch.targets, strict=True):
        assert evaluate_expression(tokens[:length].tolist()) == label
        assert (tokens[length:] == PAD).all()
    again, other = (LISTOPS.draw(KEYS, 48, 100, np.random.default_rng(seed), "train") for seed in (0, 1))
    assert (again.inputs == batch.inputs).all()
    assert (other.inputs != batch.inputs).any()


def test_long_expressions_fit_512_tokens_and_equal_their_values_in_python() -> None:
    """Each is translated to an expression of Python, with calls for operators."""
    LISTOPS.check(AT_512, 512)
    batch = LISTOPS.draw(AT_512, 512, 200, np.random.default_rng(0), "train")
    assert batch.lengths is not None
    assert batch.lengths.min() > 128
    assert 300 < batch.lengths.max() < 512
    functions = {"MIN": min, "MAX": max, "MED": lambda *x: int(np.median(x)), "SM": lambda *x: sum(x) % 10}
    texts = [*(f"{digit}," for digit in range(10)), *(f"{name}(" for name in functions), "),"]
    for tokens, length, label in zip(batch.inputs, batch.lengths, batch.targets, strict=True):
        assert eval("".join(texts[i] for i in tokens[:length]), functions) == (label,)


def test_baselines_at_512_are_those_of_many_examples() -> None:
    baselines = LISTOPS.baselines(AT_512, 512)
    assert baselines.majority == pytest.approx(0.168, abs=0.01)  # of 50,000
    assert baselines.shortcuts["the root operator alone"] == pytest.approx(0.355, abs=0.01)


@pytest.mark.slow
def test_baselines_at_official_sizes_are_as_published() -> None:
    LISTOPS.check(OFFICIAL, 2000)
    baselines = LISTOPS.baselines(OFFICIAL, 2000)
    assert baselines.majority == pytest.approx(0.166, abs=0.025)
    assert baselines.shortcuts["the root operator alone"] == pytest.approx(0.37, abs=0.03)


def test_shortcut_is_the_best_label_for_the_root_operator() -> None:
    batch = LISTOPS.draw(KEYS, 48, 2000, np.random.default_rng(0), "test")
    baselines, correct = LISTOPS.baselines(KEYS, 48), 0
    for operator in np.unique(batch.inputs[:, 0]):
        correct += np.bincount(batch.targets[batch.inputs[:, 0] == operator]).max()
    assert baselines.shortcuts["the root operator alone"] == correct / 2000
    assert baselines.majority == np.bincount(batch.targets).max() / 2000


def test_shortcut_evaluates_the_digits_of_the_root() -> None:
    batch, majority = LISTOPS.draw(KEYS, 48, 2000, np.random.default_rng(0), "test"), 0
    assert batch.lengths is not None
    majority, hits = int(np.bincount(batch.targets).argmax()), 0
    for tokens, length, label in zip(batch.inputs.tolist(), batch.lengths, batch.targets, strict=True):
        flat = " ".join(NAMES[token] for token in tokens[1 : length - 1])
        while "[" in flat:
            flat = re.sub(r"\[\w+ [\d ]*\]", "", flat)
        digits = [int(digit) for digit in flat.split()]
        middle = sorted(digits)[(len(digits) - 1) // 2 : len(digits) // 2 + 1]
        values = {"[MIN": min, "[MAX": max, "[MED": lambda _: sum(middle) // len(middle), "[SM": lambda x: sum(x) % 10}  # noqa: B023
        hits += (values[NAMES[tokens[0]]](digits) if digits else majority) == label
    assert LISTOPS.baselines(KEYS, 48).shortcuts["the root operator and its digits"] == hits / 2000


@pytest.mark.parametrize(("keys", "length"), [({"longer_than": 48}, 48), ({"depth": 2}, 48), ({}, 9)])
def test_sizes_that_do_not_fit_are_refused(keys: dict[str, int], length: int) -> None:
    with pytest.raises(UsageError, match=r"none is longer than \d+ and shorter than \d+"):
        LISTOPS.check(ListopsKeys(**keys), length)


def test_files_replace_drawn_examples(tmp_path: Path) -> None:
    rows = [f"( ( ( [MAX 1 ) {digit} ) ] )\t{max(1, digit)}" for digit in range(10)]
    for name in ("train", "val", "test"):
        (tmp_path / f"basic_{name}.tsv").write_text("\r\n".join(["Source\tTarget", *rows, ""]), newline="")
    keys = ListopsKeys(data=str(tmp_path))
    LISTOPS.check(keys, 4)
    batch = LISTOPS.draw(keys, 8, 64, np.random.default_rng(0), "test")
    assert sorted(batch.targets.tolist()) == [1, *range(1, 10)]
    assert [evaluate_expression(row[:4].tolist()) for row in batch.inputs] == batch.targets.tolist()
    assert LISTOPS.baselines(keys, 8).majority == 0.2
    with pytest.raises(UsageError, match=r"basic_train.tsv:2: 4 tokens, more than the length 3"):
        LISTOPS.check(keys, 3)
