"""MQAR: answers are looked up in the pairs, and gaps have the intended distribution."""

from __future__ import annotations

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.mqar import MQAR, POWER, MqarKeys
from efficient_attn.tasks.training.problem import IGNORED

KEYS = MqarKeys()


def test_each_answer_is_the_value_after_its_key() -> None:
    batch = MQAR.draw(KEYS, 64, 50, np.random.default_rng(0), "train")
    assert batch.distance is not None
    for tokens, targets, distance in zip(batch.inputs, batch.targets, batch.distance, strict=True):
        table = dict(zip(tokens[0:16:2].tolist(), tokens[1:16:2].tolist(), strict=True))
        queries = np.flatnonzero(targets != IGNORED)
        assert len(table) == len(set(table.values())) == len(queries) == KEYS.pairs
        assert (queries >= 16).all()
        assert [table[int(tokens[at])] for at in queries] == targets[queries].tolist()
        assert (tokens[queries - distance[queries]] == tokens[queries]).all()  # back to the keys
        assert (tokens[queries - distance[queries] + 1] == targets[queries]).all()
        assert (distance[targets == IGNORED] == -1).all()


def test_gaps_have_the_distribution_of_numpy_choice() -> None:
    batch = MQAR.draw(KEYS, 64, 4000, np.random.default_rng(0), "train")
    assert batch.distance is not None
    slots = np.arange(1, 25, dtype=float) ** (POWER - 1)
    generator = np.random.default_rng(1)
    drawn = np.array([generator.choice(24, KEYS.pairs, replace=False, p=slots / slots.sum()) for _ in range(4000)])
    at = np.stack([np.flatnonzero(row != IGNORED) for row in batch.targets])
    pair = (at - np.take_along_axis(batch.distance, at, 1)) // 2  # the pair that each position queries
    gaps = np.empty_like(at)
    np.put_along_axis(gaps, pair, (at - 16) // 2, 1)
    for column in (0, KEYS.pairs - 1):
        shares = [np.bincount(x[:, column], minlength=24) / 4000 for x in (gaps, drawn)]
        assert abs(shares[0] - shares[1]).max() < 0.03


@pytest.mark.parametrize("noise", [False, True])
def test_shortcut_is_the_share_of_the_most_frequent_pair_at_a_position(noise: bool) -> None:
    keys, counts = MqarKeys(noise=noise), np.zeros((64, 8))
    batch = MQAR.draw(keys, 64, 5000, np.random.default_rng(7), "train")
    rows, queries = np.nonzero(batch.targets != IGNORED)
    values = batch.inputs[rows, 1:16:2]
    np.add.at(counts, (queries, (values == batch.targets[rows, queries][:, None]).argmax(1)), 1)
    (share,) = MQAR.baselines(keys, 64).shortcuts.values()
    assert share == pytest.approx(counts.max(1).sum() / counts.sum(), abs=0.015)
    assert share > 1 / 8 + 0.02


@pytest.mark.parametrize(
    ("keys", "length"), [({}, 63), ({}, 30), ({"vocab": 64}, 64), ({"pairs": 16, "vocab": 32}, 64)]
)
def test_sizes_that_do_not_fit_are_refused(keys: dict[str, int], length: int) -> None:
    with pytest.raises(UsageError, match="mqar"):
        MQAR.check(MqarKeys(**keys), length)


def test_other_positions_hold_token_0_or_noise() -> None:
    quiet, loud = (
        MQAR.draw(MqarKeys(noise=noise), 64, 50, np.random.default_rng(0), "train") for noise in (False, True)
    )
    for batch, tokens in ((quiet, 1), (loud, 200)):
        rest = (batch.targets == IGNORED) & (np.arange(64) >= 16)
        assert len(np.unique(batch.inputs[rest])) >= tokens
        assert (not batch.inputs[rest].any()) == (batch is quiet)
