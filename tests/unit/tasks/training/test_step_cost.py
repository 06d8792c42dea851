"""The estimated cost of training steps."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_suites

from efficient_attn.instruments.roofline import Roofline
from efficient_attn.tasks.problems.mqar import MQAR
from efficient_attn.tasks.training.step_cost import estimate_flops, guess


def _plan(**keys: Any) -> Any:
    text = 'title = "t"\nmeasure = ["mqar"]\naxes = { threads = [1], seq_len = [64] }\nvariant = [{ name = "full" }]'
    return tiny_suites.plan(text, keys={"seeds": 1, **keys})[0]


def test_flops_of_one_layer_are_those_of_its_products() -> None:
    n, d, batch = 64, 64, 2
    attention = 6 * batch * n * 4 * d * d + 12 * batch * d * n * (n + 1) / 2  # four projections, and causal pairs
    after = 6 * batch * 4 * (8 * d * d + d * 512)  # feed-forward part and head, at 4 queries
    assert estimate_flops(MQAR, _plan(batch=batch, pairs=4, vocab=512)) == pytest.approx(attention + after)


def test_more_targets_need_more_time_and_memory() -> None:
    few, many = (guess(MQAR, _plan(pairs=pairs, vocab=8192), Roofline(1e11, 1e10)) for pairs in (4, 16))
    n_logits = 64 * 12 * 8192  # further ones: a batch, and their exponentials and gradient
    assert many.call_bytes - few.call_bytes == 3 * 4 * n_logits
    assert many.call_s > 1.5 * few.call_s
