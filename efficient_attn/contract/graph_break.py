"""`run_each_start` for compiled code, which is left for it. A module of its own, imported only when torch's compiler is
loaded: ``torch.compiler.disable`` loads it, which takes seconds."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from .left_padding import run_each_start

REASON = "which calls there are depends on the mask's contents"

run_outside_graph = cast(Callable[..., Tensor | None], torch.compiler.disable(run_each_start, reason=REASON))
