"""The cost of a call in elements written, as a measure without a clock."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class WriteCounter(TorchDispatchMode):
    """Counts the elements of all outputs of torch's operations."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numbers += sum(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))
        return out
