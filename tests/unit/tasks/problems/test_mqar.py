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


def _draw_as_published(
    vocab: int, length: int, pairs: int, count: int, power: float = POWER
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and labels of each position, example by example, in the words of the paper (Zoology, section 4)."""
    generator, space = np.random.default_rng(1), (length - 2 * pairs) // 2
    weights = np.arange(1, space + 1) ** (power - 1)
    inputs, labels = np.zeros((count, length), dtype=int), np.full((count, length), IGNORED)
    for tokens, answers in zip(inputs, labels, strict=True):
        keys = generator.choice(np.arange(1, vocab // 2), pairs, replace=False)
        values = generator.choice(np.arange(vocab // 2, vocab), pairs, replace=False)
        gaps = generator.choice(space, pairs, replace=False, p=weights / weights.sum())
        tokens[: 2 * pairs] = np.stack([keys, values], axis=1).ravel()
        tokens[2 * pairs + 2 * gaps] = keys
        answers[2 * pairs + 2 * gaps] = values
    return inputs, labels


def _count(inputs: np.ndarray, targets: np.ndarray, pairs: int) -> tuple[np.ndarray, ...]:
    """Shares: of distances from queries back to their keys; of positions of the first and last pair and of targets, by
    sixteens."""
    length = inputs.shape[1]
    rows, queries = np.nonzero(targets != IGNORED)
    pair = (inputs[rows, : 2 * pairs : 2] == inputs[rows, queries][:, None]).argmax(1)
    ends = (queries[pair == 0], queries[pair == pairs - 1])
    values = queries - 2 * pair, *(positions // 16 for positions in ends), targets[rows, queries] // 16
    return tuple(np.bincount(x, minlength=length + targets.max() // 16) / len(x) for x in values)


@pytest.mark.parametrize(("vocab", "length", "pairs"), [(256, 64, 8), (2048, 128, 16), (512, 256, 32)])
def test_examples_have_the_distributions_of_zoologys_generator(vocab: int, length: int, pairs: int) -> None:
    count = 6000
    batch = MQAR.draw(MqarKeys(vocab=vocab, pairs=pairs), length, count, np.random.default_rng(0), "train")
    drawn = _count(batch.inputs, batch.targets, pairs)
    expected = _count(*_draw_as_published(vocab, length, pairs, count), pairs)
    uniform = _count(*_draw_as_published(vocab, length, pairs, 1000, power=1.0), pairs)
    distances = [abs(a - b).sum() / 2 for a, b in zip(drawn, expected, strict=True)]
    assert distances[0] < 0.02  # of all distances; those of single pairs and of targets have fewer draws
    assert max(distances[1:]) < 0.04
    assert abs(uniform[0] - expected[0]).sum() / 2 > 0.05


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
