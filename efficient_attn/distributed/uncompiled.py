"""Calls that compiled code leaves: one graph break. Imported only while code is compiled, because
``torch.compiler.disable`` loads torch's compiler, which takes seconds."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor


def _call(function: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
    return function(*arguments, **options)


REASON = "ranks communicate, in calls that differ from rank to rank"

call_uncompiled = cast(Callable[..., Tensor], torch.compiler.disable(_call, reason=REASON))
