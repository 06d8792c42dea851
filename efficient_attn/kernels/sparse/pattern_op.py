"""Softmax over a pattern as a custom op, for `torch.compile` and `torch.export`: the plan is made inside, from a text.

The text contains facts only, so that an exported program can use its pattern in any process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from ...patterns import Geometry, Pattern
from ..derivatives import make_softmax_op
from .implementation_choice import CallShape, choose_implementation
from .masked_softmax import attend_masked, fold_mask, masked_gradients, run_masked
from .parts import PlanConfig, plan_gradients, run_plan, softmax_over_plan
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


def softmax_over_text(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, text: str, *options: Any) -> Tensor:
    """Softmax over a pattern's text. how: start, causal, the backend (adaptive, parts, blocks or masked), scale."""
    return _pattern_op(q, k, v, valid, text, *options)[0]


def _attend_blocks(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, pattern: Pattern, g: Geometry, scale: float
) -> Tensor:
    return softmax_over_plan(q, k, v, valid, PlanConfig(plan_blocks(pattern, g), q.shape[2], scale))


# softmax over any pattern, by gathered blocks; compiled code is left for it: one graph break
softmax_outside_graph = cast(Callable[..., Tensor], torch.compiler.disable(_attend_blocks))
masked_outside_graph = cast(Callable[..., Tensor], torch.compiler.disable(attend_masked))


def _uses_mask(q: Tensor, valid: Tensor | None, pattern: Pattern, g: Geometry, backend: str) -> bool:
    """Whether a call is one masked softmax. An op does not know whether a gradient will be required."""
    if backend == "adaptive":
        masks = 1 if valid is None else len(valid)
        call = CallShape(q.shape[0] * q.shape[2], q.shape[2], q.shape[3], q.dtype, gradient=False, masks=masks)
        backend = choose_implementation(pattern, g, call)
    return backend == "masked"


def _make_config(q: Tensor, pattern: Pattern, g: Geometry, backend: str, scale: float) -> PlanConfig:
    return PlanConfig((plan_blocks if backend == "blocks" else plan_parts)(pattern, g), q.shape[2], scale)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    text: str,
    start: int,
    causal: bool,
    backend: str,
    scale: float,
) -> tuple[Tensor, Tensor]:
    pattern, g = read_pattern(text), Geometry(q.shape[1], k.shape[1], start, causal)
    if _uses_mask(q, valid, pattern, g, backend):
        return run_masked(q, k, v, fold_mask(q, valid, pattern, g), scale)
    return run_plan(q, k, v, valid, _make_config(q, pattern, g, backend, scale))


def _run_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    out: Tensor,
    lse: Tensor,
    text: str,
    start: int,
    causal: bool,
    backend: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    pattern, g = read_pattern(text), Geometry(q.shape[1], k.shape[1], start, causal)
    if _uses_mask(q, valid, pattern, g, backend):
        return masked_gradients(grad, q, k, v, fold_mask(q, valid, pattern, g), out, lse, scale)
    return plan_gradients(grad, q, k, v, valid, out, lse, _make_config(q, pattern, g, backend, scale))


_pattern_op = make_softmax_op("sparse", _run, _run_backward)
