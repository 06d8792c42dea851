"""Complexity: how time and memory of a mechanism or a layer grow with its sizes, compared with published formulas.

A case is a sweep: one mechanism or layer at all sizes along one axis, timed interleaved. The suite states the rule of
the verdict on a formula (`ComplexityKeys.tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ...bench.case_config import CaseConfig, Group
from ...bench.planning.request import TaskRequest
from ...bench.planning.suite_schema import Count
from ...bench.task import Guess, Keys, Task
from ...errors import UsageError
from ...results.rows import Record, Row
from ...results.section import Section
from ...results.stats import Estimate, estimate_exponent, estimate_mean
from ...spec import SpecLike, parse
from ...units import parse_size
from .formulas import evaluate

if TYPE_CHECKING:
    from ...bench.case import Case
    from ...instruments.roofline import Roofline
    from .sweep import SweepResult

Along = Literal["length", "width", "heads", "causal"]
HEAD_COUNTS = (1, 2, 4, 8, 16)  # among which one width is divided
VARIABLES = "NDHCk"  # that claims may use
CALLS_PER_ROUND = 3  # of each size, as `plan_samples` plans for slow calls
UNTIMED_CALLS = 8  # of each size, for calibration and memory


class GrowthClaim(BaseModel):
    """A published claim. time, memory: upper bounds, as formulas in N, D, H (the heads that share one width) and C (1,
    or 2 with a causal mask), up to a constant. parameters: the exact number without biases, for D inputs and outputs,
    with k for a convolution's width. sequential: sequential steps. source: of the claim."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    time: str
    memory: str | None = None
    parameters: str | None = None
    sequential: str | None = None
    source: str = ""


def _restore_tables(claims: Any) -> Any:
    """Nested tables, as in a suite, from the pairs that a group stores."""
    return {name: dict(fields) for name, fields in claims} if isinstance(claims, tuple) else claims


class ComplexityKeys(Keys):
    """along: the axis that varies: the length, the width, the number of heads that share one width, or the causal mask.

    sizes: of the sweep, by default those of ``seq_len``, or of ``head_dim`` times the heads. length, width: if they do
    not vary. training: whether a call is a forward and a backward pass. most_s, most_bytes: limits of a call, at which
    a sweep ends. octaves: the last ones, to which an exponent is fitted. tolerance: an exponent whose interval ends
    at most this far above the claimed one reproduces it, one whose interval begins above contradicts it, all others
    are inconclusive. claims: by name or spec.
    """

    along: tuple[Along, ...] = ("length", "width")
    sizes: tuple[Count, ...] | None = None
    length: Count = 1024
    width: Count = 64
    training: bool = False
    most_s: Annotated[float, Field(gt=0)] = 1.0
    most_bytes: Annotated[int, BeforeValidator(lambda value: parse_size(str(value)))] = 2 * 10**9
    octaves: Annotated[int, Field(ge=2, strict=True)] = 4
    tolerance: Annotated[float, Field(gt=0)] = 0.2
    claims: Annotated[dict[str, GrowthClaim], BeforeValidator(_restore_tables)] = Field(default_factory=dict)

    def find_claim(self, variant: SpecLike) -> GrowthClaim | None:
        """The claim about a spec, else about its name."""
        return self.claims.get(str(variant), self.claims.get(parse(variant).names[0]))


def plan(request: TaskRequest) -> Iterator[tuple[Group, int | None]]:
    """A group for each axis and configuration, of mechanisms and of layers."""
    keys: ComplexityKeys = request.keys
    key_values = keys.model_dump(exclude={"along", "sizes", "claims"})
    claims = {name: claim.model_dump(exclude_defaults=True) for name, claim in keys.claims.items()}
    key_values["claims"] = tuple((name, tuple(fields.items())) for name, fields in claims.items())
    for along, point in product(keys.along, request.grid.combine("threads", "batch", "heads", "causal")):
        sizes, heads = _list_sizes(request, along, point["heads"]), point["heads"]
        width = max(sizes) if along == "width" else keys.width
        for n, d in product(sizes if along == "heads" else [heads], sizes if along == "width" else [width]):
            if d % n:
                raise UsageError(f"{request.task}: {n} heads do not divide a width of {d}")
        _check_claims(request, along, sizes)
        length = max(sizes) if along == "length" else keys.length
        config = CaseConfig(seq_len=length, max_len=length, head_dim=width // heads, inputs=f"growing {along}", **point)
        for of_blocks in [False] * request.variants + [True] * request.blocks:
            yield request.make_group(config, of_blocks=of_blocks, along=(along,), sizes=sizes, **key_values), None


def _check_claims(request: TaskRequest, along: Along, sizes: Sequence[int]) -> None:
    """Check that claims name known layers and are positive at each size, as exponents are fitted to logarithms."""
    from ...layers.named import check_layer

    letter = {"length": "N", "width": "D", "heads": "H", "causal": "C"}[along]
    for name, claim in request.keys.claims.items():
        check_layer(name)
        for size, formula in product(sizes, (claim.time, claim.memory, claim.parameters, claim.sequential)):
            if formula is not None and evaluate(formula, dict.fromkeys(VARIABLES, 2.0) | {letter: size}) <= 0:
                raise UsageError(f"{request.task}: claim of {name}: {formula!r} is 0 for {letter} = {size}")


def _list_sizes(request: TaskRequest, along: Along, heads: int) -> tuple[int, ...]:
    if along == "causal":
        return (1, 2)
    defaults = {
        "length": request.grid["seq_len"],
        "width": [heads * d for d in request.grid["head_dim"]],
        "heads": [h for h in HEAD_COUNTS if request.keys.width % h == 0],
    }
    sizes = tuple(sorted(set(request.keys.sizes or defaults[along])))
    if len(sizes) <= request.keys.octaves:
        needed = f"give more than octaves, {request.keys.octaves}"
        raise UsageError(f"{request.task}: {len(sizes)} sizes along {along}; {needed}")
    return sizes


def judge(case: Case, row: Row, report_stage: Callable[..., None]) -> Record:
    """Measure a sweep, and compare its exponents with the claim."""
    from ...bench.measuring.prepared_case import TIMING
    from .sweep import measure_sweep

    keys: ComplexityKeys = case.keys
    sweep = measure_sweep(case, lambda: report_stage(TIMING))
    largest, claim = sweep.results[-1], keys.find_claim(case.variant)
    row.mode = "forward_backward" if keys.training else "forward"
    row.latency_ms, row.latency_ms_low, row.latency_ms_high = (x and 1e3 * x for x in largest.seconds)
    row.peak_memory_bytes, row.parameters, row.rounds = largest.bytes, sweep.parameters, len(sweep.rounds)
    row.oracle_error = sweep.error
    row.seq_len = row.kv_len = largest.point.length
    row.heads, row.head_dim = largest.point.heads, largest.point.width // largest.point.heads
    row.extra = {
        "of": "layer" if case.group.of_blocks else "mechanism",
        "along": keys.along[0],
        "smallest": sweep.sizes[0],
        "reached": sweep.sizes[-1],
        "stopped": sweep.stop_reason,
        "weights": sweep.weights,
        "sequential": sweep.sequential,
        "source": claim and claim.source,
    }
    row.extra |= _make_exponent_columns("time", sweep.rounds, sweep, keys, claim and claim.time)
    peak_bytes = [point.bytes for point in sweep.results if point.bytes]
    if len(peak_bytes) == len(sweep.results) and keys.along != ("causal",):
        row.extra |= _make_exponent_columns("memory", [peak_bytes], sweep, keys, claim and claim.memory)
    if claim and claim.parameters:
        row.extra["weights_claim"] = claim.parameters
        row.extra["weights_claimed"] = round(evaluate(claim.parameters, sweep.results[0].point.variables))
    if claim and claim.sequential:
        row.extra["sequential_claimed"] = round(evaluate(claim.sequential, largest.point.variables))
    rounds = [[round(1e3 * x, 6) for x in values] for values in sweep.rounds]
    return Record(row, {"sizes": list(sweep.sizes), "rounds_ms": rounds, "bytes": peak_bytes})


def _make_exponent_columns(
    quantity: str, rounds: Sequence[Sequence[float]], sweep: SweepResult, keys: ComplexityKeys, formula: str | None
) -> dict[str, Any]:
    """The columns of a measured exponent, and if there is a claim, of the claimed one and the verdict."""
    measured = fit_exponent(sweep.sizes, rounds, keys.octaves)
    columns: dict[str, Any] = {
        f"{quantity}_exponent": measured.value,
        f"{quantity}_low": measured.low,
        f"{quantity}_high": measured.high,
    }
    if formula:
        values = [evaluate(formula, point.point.variables) for point in sweep.results]
        claimed = fit_exponent(sweep.sizes, [values], keys.octaves).value
        columns |= {f"{quantity}_claim": formula, f"{quantity}_claimed": claimed}
        columns[f"{quantity}_verdict"] = compute_verdict(measured, claimed, keys.tolerance)
        if keys.along[0] in ("length", "width") and sweep.sizes[0] * 2**keys.octaves > sweep.sizes[-1]:
            columns[f"{quantity}_verdict"] = f"inconclusive: less than {keys.octaves} octaves"
    return columns


def fit_exponent(sizes: Sequence[int], rounds: Sequence[Sequence[float]], octaves: int) -> Estimate:
    """The exponent of measurements at several sizes, one list for each round, over the last octaves. Its interval is
    that of a straight line through the rounds' geometric means, so that curvature widens it; with two sizes, which
    every line fits, that of the rounds' exponents."""
    indices = [i for i, size in enumerate(sizes) if size * 2**octaves >= sizes[-1]]
    xs = [sizes[i] for i in indices]
    if len(xs) > 2 or len(rounds) == 1:
        means = [math.exp(sum(math.log(values[i]) for values in rounds) / len(rounds)) for i in indices]
        return estimate_exponent(xs, means)
    mean = estimate_mean([math.log(values[-1] / values[indices[0]]) / math.log(xs[-1] / xs[0]) for values in rounds])
    return Estimate(mean.value, *(mean.interval() or (None, None)))


def compute_verdict(measured: Estimate, claimed: float, tolerance: float) -> str:
    """The verdict on an exponent, by the rule of `ComplexityKeys`: the claim is an upper bound, which slower growth
    satisfies. An exact exponent is its own interval."""
    low, high = (measured.value if end is None else end for end in (measured.low, measured.high))
    if high <= claimed + tolerance:
        return "reproduced: grows more slowly" if high < claimed - tolerance else "reproduced"
    return "contradicted: grows faster" if low > claimed + tolerance else "inconclusive"


def guess(case: Case, best: Roofline) -> Guess:
    """The estimated cost of a sweep over the sizes within the limits."""
    from ...bench.planning.cost_estimate import CALLS
    from .sweep import estimate_call_s, list_points

    seconds = [estimate_call_s(case, point, best) for point in list_points(case)]
    within_limit = [s for s in seconds if s <= case.keys.most_s]
    calls = case.group.sampling.rounds * CALLS_PER_ROUND + UNTIMED_CALLS
    return Guess(sum(within_limit) * calls / CALLS, 0, case.keys.most_bytes)


EXPONENT_COLUMNS = {
    "exponent": "of {}, over the last octaves",
    "low": "the lower end of its 95% interval",
    "high": "the upper end",
    "claim": "the published formula",
    "claimed": "its exponent over the same sizes",
    "verdict": "by the suite's rule",
}

COMPLEXITY = Task(
    name="complexity",
    words=("complexity",),
    keys=ComplexityKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    blocks=True,
    columns={
        "of": "a layer (x to x), or a mechanism",
        "along": "what grows: length, width, heads or causal",
        "smallest": "the first size",
        "reached": "the last size",
        "stopped": "why there is no larger one",
        "weights": "parameters at the first size, biases not counted",
        "weights_claim": "their published number",
        "weights_claimed": "that at the first size",
        "sequential": "steps one after another at the last size, as declared",
        "sequential_claimed": "the published number",
        "source": "the publication",
        **{f"time_{name}": text.format("time") for name, text in EXPONENT_COLUMNS.items()},
        **{f"memory_{name}": text.format("memory") for name, text in EXPONENT_COLUMNS.items()},
    },
    sections=(
        Section(name="complexity", task="complexity", title="Growth and claims", layout="complexity", y="latency_ms"),
    ),
)
