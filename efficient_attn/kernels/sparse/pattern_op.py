"""Softmax over a pattern as a custom op, for `torch.compile` and `torch.export`: the plan is made inside, from a text.
The text contains facts only, so that an exported program can use its pattern in any process."""

import json
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from ...patterns import Geometry, Pattern
from ..custom_ops import have_numbers
from ..softmax.merge import FusedInputs
from ..softmax.softmax_kernel import SavedSoftmax, SoftmaxKernel
from .implementation_choice import choose_implementation, is_native, runs_in_cpp
from .masked_softmax import fold_mask, masked_gradients, run_masked
from .parts import KERNEL, PlanConfig, SparseInputs, plan_gradients, run_plan
from .tile_plan import BUILTIN_FACTS, plan_blocks, plan_parts

FACTS = {fact.__name__: fact for fact in BUILTIN_FACTS}


def write_pattern(pattern: Pattern) -> str | None:
    """A pattern as text; None where it has facts that are not ours."""
    builtin_facts = [fact for fact in pattern.facts if isinstance(fact, BUILTIN_FACTS) and type(fact) in BUILTIN_FACTS]
    if len(builtin_facts) < len(pattern.facts):
        return None
    return json.dumps([[type(fact).__name__, asdict(fact)] for fact in builtin_facts])


@lru_cache(maxsize=64)
def read_pattern(text: str) -> Pattern:
    """The pattern that `write_pattern` wrote."""
    return Pattern(tuple(FACTS[name](**fields) for name, fields in json.loads(text)))


class PatternOptions(NamedTuple):
    """text: the pattern's. start: the position of the first query. backend: adaptive, parts, cpp, blocks or masked."""

    text: str
    start: int
    causal: bool
    backend: str
    scale: float


def _prepare(inputs: SparseInputs, options: PatternOptions) -> FusedInputs | PlanConfig:
    """The inputs of one masked softmax, or else a plan."""
    q, k, v, valid = inputs
    pattern, g = read_pattern(options.text), Geometry(q.shape[1], k.shape[1], options.start, options.causal)
    backend, masks = options.backend, 1 if valid is None else len(valid)
    if backend == "adaptive":
        native = is_native(q.dtype, q.device) and have_numbers(q, k)
        backend = choose_implementation(pattern, g, q.shape[0] * q.shape[2], q.shape[3], masks, native=native)
    if backend == "masked":
        return FusedInputs(q, k, v, fold_mask(q, valid, pattern, g))
    plan = (plan_blocks if backend == "blocks" else plan_parts)(pattern, g)
    return PlanConfig(plan, q.shape[2], options.scale, runs_in_cpp(plan, inputs, backend=options.backend))


def _forward(inputs: SparseInputs, options: PatternOptions) -> tuple[Tensor, Tensor]:
    choice = _prepare(inputs, options)
    return run_plan(inputs, choice) if isinstance(choice, PlanConfig) else run_masked(choice, options.scale)


def _gradients(grad: Tensor, saved: SavedSoftmax[SparseInputs], options: PatternOptions) -> tuple[Tensor, ...]:
    choice = _prepare(saved.inputs, options)
    if isinstance(choice, PlanConfig):
        return plan_gradients(grad, saved, choice)
    return masked_gradients(grad, SavedSoftmax(choice, saved.out, saved.lse), options.scale)


softmax_over_text = SoftmaxKernel(KERNEL, SparseInputs, PatternOptions, _forward, _gradients, op="sparse")
