"""Select parts or one masked softmax: the one that is expected to be faster for a geometry."""

from functools import lru_cache
from typing import Literal

from ...patterns import Geometry, Pattern
from .mask_cache import MAX_CACHED_PAIRS
from .tile_plan import plan_parts
from .tiles import TilePlan

MAX_MASKED_LENGTH = 1024  # positions on either side beyond which unneeded pairs are never computed

# In pairs of one head of width 64 in torch's masked kernel, about 5.5 ns on a Zen 3 in float32. Fitted to nine patterns
# at 64 to 1,024 positions and 4 and 32 heads, forward and with gradients(suites/trials/short_sequences.py)
STEP_COST = 30_000  # one kernel call with its fetching, joining and Python, whatever its size
ROW_COST = 60  # a row that a step fetches, writes and joins

Implementation = Literal["parts", "masked"]


@lru_cache(maxsize=256)
def choose_implementation(pattern: Pattern, g: Geometry, heads: int, width: int, masks: int) -> Implementation:
    """The cheaper implementation of a call, for a pattern of known facts. heads: of the whole batch. width: of q and k.
    masks: needed by a masked call, one for each row of the batch with padding. A single row is a decode step, after
    which there is one key more: a mask would be created for one call."""
    if g.n == 1 or max(g.n, g.m) > MAX_MASKED_LENGTH or masks * g.n * g.m > MAX_CACHED_PAIRS:
        return "parts"
    return compare_costs(plan_parts(pattern, g), g, heads, width)


def compare_costs(plan: TilePlan, g: Geometry, heads: int, width: int) -> Implementation:
    """The pairs that a plan computes, with the overhead of its steps and rows, compared with all pairs of the geometry.
    The overhead of a step is smaller relative to its pairs, the more heads share it and the wider they are. Groups,
    dtype and gradients affect both alike, as far as was measured."""
    steps = [(s.tile.queries.size * (s.last - s.first), s.tile.keys.size) for t in plan for s in t.steps()]
    rows, pairs = sum(count for count, _ in steps), sum(count * keys for count, keys in steps)
    overhead = 64 / width * (rows * ROW_COST + len(steps) * STEP_COST / heads)
    return "masked" if g.n * g.m < pairs + overhead else "parts"
