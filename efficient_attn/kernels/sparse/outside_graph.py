"""Attention for which compiled code is left: one graph break. Imported only while code is compiled, because
``torch.compiler.disable`` loads torch's compiler, which takes seconds."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from ...patterns import Geometry, Pattern
from .masked_softmax import attend_masked
from .parts import PlanConfig, SparseInputs, softmax_over_plan
from .tile_plan import plan_blocks


def _attend_blocks(inputs: SparseInputs, pattern: Pattern, g: Geometry, scale: float) -> Tensor:
    return softmax_over_plan(inputs, PlanConfig(plan_blocks(pattern, g), inputs.q.shape[2], scale))


# softmax over any pattern: by gathered blocks, and with a mask
softmax_outside_graph = cast(Callable[..., Tensor], torch.compiler.disable(_attend_blocks))
masked_outside_graph = cast(Callable[..., Tensor], torch.compiler.disable(attend_masked))
