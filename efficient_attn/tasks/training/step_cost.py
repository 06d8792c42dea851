"""The cost of a training step, estimated from the sizes of the model and the number of targets."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...bench.task import Guess
from .attempts import Attempt
from .problem import IGNORED, LearnKeys, Problem
from .uptraining import is_original

if TYPE_CHECKING:
    from ...bench.case import Case
    from ...instruments.roofline import Roofline

STEP_OVERHEAD_S = 4e-3  # least seconds of a step for each layer: forward, backward and AdamW
GEMM_EFFICIENCY = 0.6  # share of a matrix product's rate that small models reach
EVALUATION_FACTOR = 1.25  # time with validation and tests, relative to that of the steps
FEED_FORWARD_SHARE = 8 / 12  # of a layer's parameters
COUNTED_EXAMPLES = 64
FLOAT_BYTES, LOGIT_COPIES = 4, 3  # logits, their exponentials and their gradient


def guess(problem: Problem, case: Case, best: Roofline) -> Guess:
    """The estimated cost of training; zero for attempts that are only needed after failures."""
    from ...bench.planning.cost_estimate import CALLS

    keys, recipe, config = case.keys, problem.recipe, case.group.config
    attempt = Attempt(**dict(keys.attempt))
    repeats_conversion = is_original(case) and attempt.conversion not in (None, keys.conversions[0])
    if attempt.kind in ("above", "below", "more") or repeats_conversion:
        return Guess(0.0, 0, 0)
    layers, batch = _count_layers(problem, keys), keys.batch or recipe.batch
    step = STEP_OVERHEAD_S * layers + estimate_flops(problem, case) / best.gemm_flops_per_s / GEMM_EFFICIENCY
    seconds = EVALUATION_FACTOR * (keys.seconds or (keys.steps or recipe.steps) * step)
    if attempt.share is not None:  # also once the tests, and twice half of them for validation, forward only
        seconds = attempt.share * seconds + 2 / 3 * keys.examples / batch * step
    parameters = layers * _count_layer_parameters(problem) + recipe.d_model * problem.outputs(keys)
    activations = 40 * batch * config.seq_len * recipe.d_model * layers
    n_logits = batch * _count_targets(problem, keys, config.seq_len) * problem.outputs(keys)
    return Guess(seconds / CALLS, 0, int(16 * parameters + activations + LOGIT_COPIES * FLOAT_BYTES * n_logits))


def estimate_flops(problem: Problem, case: Case) -> float:
    """Floating-point operations of a training step, from the parameters and the pairs of queries and keys. The last
    feed-forward part and the head are computed only where there are targets."""
    keys, config, recipe = case.keys, case.group.config, problem.recipe
    batch, layers = keys.batch or recipe.batch, _count_layers(problem, keys)
    per_layer = _count_layer_parameters(problem)
    last, head = FEED_FORWARD_SHARE * per_layer, recipe.d_model * problem.outputs(keys)
    n_targets = _count_targets(problem, keys, config.seq_len)
    work = 6.0 * batch * (config.seq_len * (layers * per_layer - last) + n_targets * (last + head))
    if not case.group.of_blocks:
        pairs = case.create().growth.cost(config.seq_len, config.seq_len, config.causal)
        work += 12 * batch * layers * recipe.d_model * pairs
    return work


def _count_layers(problem: Problem, keys: LearnKeys) -> int:
    return (keys.layers or problem.recipe.layers) * (2 if problem.recipe.model in ("sequence", "pair") else 1)


def _count_layer_parameters(problem: Problem) -> int:
    """Those of a layer, through which every token passes."""
    return 12 * problem.recipe.d_model**2


def _count_targets(problem: Problem, keys: LearnKeys, length: int) -> float:
    """The positions of an example at which the last feed-forward part and the head are computed."""
    if problem.recipe.model not in ("decoder", "sequence"):
        return length
    same_keys = cast(Hashable, keys.model_copy(update={"attempt": ()}))  # pydantic makes frozen models hashable
    return _count_drawn_targets(problem, same_keys, length)


@cache
def _count_drawn_targets(problem: Problem, keys: Any, length: int) -> float:
    batch = problem.draw(keys, length, COUNTED_EXAMPLES, np.random.default_rng(0), "validation")
    return float((batch.targets != IGNORED).sum(1).mean())
