"""What tasks with trained models share: the supported axes, and the speed of models."""

from collections.abc import Sequence

from ..bench.planning.request import TaskRequest
from ..errors import UsageError

GEMM_EFFICIENCY = 0.5  # of a matrix product's rate that a model's layers reach, attention included
EXACT_SPEC = "full"  # the original model's attention: exact, over all keys


def check_axes(request: TaskRequest, *, devices: Sequence[str] = ("cpu",)) -> None:
    """Refuse axes that models do not support, instead of producing failing rows."""
    if request.sampling.seed:
        raise UsageError(f"{request.task}: layers have their own seeds, so seed must be 0, not {request.sampling.seed}")
    for axis, supported in (("device", devices), ("dtype", ("float32",)), ("batch", (1,))):
        if unsupported := [value for value in request.grid[axis] if value not in supported]:
            names = " or ".join(map(str, supported))
            raise UsageError(f"{request.task}: models are run with {axis} {names}, not {unsupported[0]}")
