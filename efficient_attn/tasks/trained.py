"""What tasks about trained models share: how models are run here, and how fast."""

from __future__ import annotations

from ..bench.planning.request import Asked
from ..errors import UsageError

PACE = 0.5  # of a matrix product's rate that a model's layers reach, attention included
OWN = "full"  # what a model's own attention is here: exact, over all keys


def check_places(asked: Asked) -> None:
    """Refuse what models are not run with here, rather than tell of it in a row."""
    if asked.effort.seed:
        raise UsageError(
            f"{asked.task}: layers draw from their own numbers, so the seed can only be 0, not {asked.effort.seed}"
        )
    for axis, only in (("device", "cpu"), ("dtype", "float32"), ("batch", 1)):
        if other := [value for value in asked.grid[axis] if value != only]:
            raise UsageError(f"{asked.task}: models are run with {axis} {only}, not {other[0]}")
