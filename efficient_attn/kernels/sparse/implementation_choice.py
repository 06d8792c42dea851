"""Select parts or one masked softmax, whichever is expected to be faster for a geometry; C++ or torch for parts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from ...patterns import Band, Geometry, Pattern
from ...shared_caches import shared_cache
from ..autotuning.autotuner import choose
from ..autotuning.candidates import Candidates, Tunable, TuningPoint, format_kind, make_calls
from ..custom_ops import have_numbers
from ..derivatives import wants_gradient
from ..native.building import is_available
from .additive_masks import MAX_CACHED_PAIRS
from .parts import PlanConfig, SparseInputs, softmax_over_plan
from .tile_plan import plan_parts
from .tiles import TilePlan

MAX_MASKED_LENGTH = 1024  # positions on either side beyond which unneeded pairs are never computed


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a plan, in pairs of one head of width 64 in torch's masked kernel. call: of the whole, with its Python.
    step: of a kernel call, or of a tile in C++. row: that a step fetches, writes and joins. pair: that is computed."""

    call: int
    step: int
    row: int
    pair: float


# Fitted to nine patterns at 64 to 1,024 positions and 4 and 32 heads, forward and with gradients, on a Zen 3, where a
# masked pair takes about 5.5 ns in float32 (suites/trials/short_sequences.py); in C++ on a Zen 4 (3.7 ns), up to 768
IN_TORCH = Costs(call=0, step=30_000, row=60, pair=1)
IN_CPP = Costs(call=5_000, step=8_000, row=10, pair=0.7)

Implementation = Literal["parts", "masked"]


@shared_cache
@lru_cache(maxsize=256)
def choose_implementation(
    pattern: Pattern, g: Geometry, heads: int, width: int, masks: int, *, native: bool
) -> Implementation:
    """The cheaper implementation of a call, for a pattern of known facts. heads: of the whole batch. width: of q and k.
    masks: needed by a masked call, one for each row of the batch with padding. native: whether parts would run in C++.
    A single row is a decode step, after which there is one key more: a mask would be created for one call."""
    if g.n == 1 or max(g.n, g.m) > MAX_MASKED_LENGTH or masks * g.n * g.m > MAX_CACHED_PAIRS:
        return "parts"
    return compare_costs(plan_parts(pattern, g), g, heads, width, IN_CPP if native else IN_TORCH)


def compare_costs(plan: TilePlan, g: Geometry, heads: int, width: int, costs: Costs) -> Implementation:
    """The pairs that a plan computes, with the overhead of its steps and rows, compared with all pairs of the geometry.
    The overhead of a step is smaller relative to its pairs, the more heads share it and the wider they are. Groups,
    dtype and gradients affect both alike, as far as was measured."""
    tiles = [tile for tiling in plan for tile in tiling.tiles]
    rows, pairs = sum(t.count * t.queries.size for t in tiles), sum(t.pairs for t in tiles)
    n_steps = len(tiles) if costs == IN_CPP else sum(1 for tiling in plan for _ in tiling.steps())
    overhead = 64 / width * (rows * costs.row + (costs.call + n_steps * costs.step) / heads)
    return "masked" if g.n * g.m < pairs * costs.pair + overhead else "parts"


def is_native(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether C++ may be selected for calls of this dtype."""
    return device.type == "cpu" and dtype in TIMED_DTYPES and is_available("tiles")


def runs_in_cpp(plan: TilePlan, inputs: SparseInputs, *, backend: str) -> bool:
    """Whether C++ runs a plan: with the backend ``cpp`` wherever it can, with ``adaptive`` where it is selected."""
    q, k, v, _ = inputs
    if backend not in ("adaptive", "cpp") or q.device.type != "cpu" or not have_numbers(q, k, v):
        return False
    if backend == "cpp":
        return True
    if not is_native(q.dtype, q.device):
        return False
    kind = format_kind(q.dtype, trains=wants_gradient(q, k, v))
    return choose(TILES, kind, len(q), q.shape[2], q.shape[1], count_keys(plan, q.shape[1]), q.shape[3]) == "cpp"


@shared_cache
@lru_cache(maxsize=256)
def count_keys(plan: TilePlan, n: int) -> int:
    """Pairs that a plan computes for each of n queries."""
    return sum(tile.pairs for tiling in plan for tile in tiling.tiles) // n


def _make_candidates(point: TuningPoint) -> Candidates:
    """The calls of a point, whose sizes are key-value heads, query heads of each, positions, keys of each, width."""
    heads, group, n, keys, width = point.sizes
    plan = plan_parts(Pattern((Band(-keys // 2, keys // 2),)), Geometry(n, n, 0, False))

    def compute(q: Tensor, k: Tensor, v: Tensor, native: bool = False) -> Tensor:
        return softmax_over_plan(SparseInputs(q, k, v, None), PlanConfig(plan, group, width**-0.5, native))

    computations: dict[str, Callable[..., Tensor]] = {"torch": compute}
    if is_available("tiles"):
        computations["cpp"] = partial(compute, native=True)
    return make_calls(point, ((heads, n, group, width), (heads, n, width), (heads, n, width)), computations)


TIMED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
POINTS = product(TIMED_DTYPES, (False, True), ((2, 1, 512, 256, 64), (1, 4, 256, 128, 128)))
TILES = Tunable(
    name="tiles",
    implementations=("torch", "cpp"),
    points=tuple(TuningPoint(format_kind(dtype, trains=trains), sizes) for dtype, trains, sizes in POINTS),
    make_candidates=_make_candidates,
    rule=lambda point: "cpp" if is_available("tiles") else "torch",
    is_available=lambda name: name != "cpp" or is_available("tiles"),
)
