"""Complexity: how time and memory of a layer, or of a mechanism alone, grow with length and with width; beside what is
claimed, with a verdict by a rule that the suite states before it runs.

A case is a sweep: one mechanism or layer at all sizes along one axis, timed in turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ...bench.config import Cell, Place
from ...bench.planning.request import Asked
from ...bench.task import Guess, Keys, Task
from ...errors import UsageError
from ...results.rows import Record, Row
from ...results.section import Section
from ...results.stats import Estimate, exponent, mean_of
from ...spec import parse
from ...units import parse_size
from .formulas import evaluate

if TYPE_CHECKING:
    from ...bench.case import Case
    from ...instruments.roofline import Ceiling
    from .sweep import Sweep

Along = Literal["length", "width", "heads", "causal"]
HEADS = (1, 2, 4, 8, 16)  # into which a width is parted
NAMES = "NDHCk"  # that claims may use
PASSES = 3  # of a round, at most what `share_turns` gives to calls as long as these
UNTIMED = 8  # calls of each size that find its pace and its memory


class Claim(BaseModel):
    """What is published. time, memory: formulas in N, D, H (the heads that share one width) and C (1, or 2 where later
    keys are hidden), right but for constants. parameters: the exact number, biases not counted, of D numbers in and
    out, with k for a convolution's width. sequential: steps one after another. source: who says so."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    time: str
    memory: str | None = None
    parameters: str | None = None
    sequential: str | None = None
    source: str = ""


def _thaw(claims: Any) -> Any:
    """Tables of tables, as a suite has them, from the pairs that a cell keeps."""
    if not isinstance(claims, tuple):
        return claims
    return {name: dict(own) for name, own in claims}


class ComplexityKeys(Keys):
    """along: what grows: the length, the width, the heads that share one width, or whether later keys are hidden.

    sizes: of the sweep, by default ``seq_len``'s, or ``head_dim``'s times the heads. length, width: of what does not
    grow. training: a pass with gradients. most_s, most_bytes: of a call: a sweep ends before the first that takes more.
    octaves: the last ones, to which an exponent is fitted. tolerance: an exponent whose interval lies within so much of
    the claimed one reproduces it, one whose interval lies outside contradicts it, all others are inconclusive. claims:
    by the name of what they are about.
    """

    along: tuple[Along, ...] = ("length", "width")
    sizes: tuple[Annotated[int, Field(ge=1, strict=True)], ...] | None = None
    length: Annotated[int, Field(ge=1, strict=True)] = 1024
    width: Annotated[int, Field(ge=1, strict=True)] = 64
    training: bool = False
    most_s: Annotated[float, Field(gt=0)] = 1.0
    most_bytes: Annotated[int, BeforeValidator(lambda value: parse_size(str(value)))] = 2 * 10**9
    octaves: Annotated[int, Field(ge=2, strict=True)] = 4
    tolerance: Annotated[float, Field(gt=0)] = 0.2
    claims: Annotated[dict[str, Claim], BeforeValidator(_thaw)] = Field(default_factory=dict)

    def find_claim(self, variant: str) -> Claim | None:
        """Of a variant as it is written, else of its name."""
        return self.claims.get(variant, self.claims.get(parse(variant).names[0]))


def plan(asked: Asked) -> Iterator[tuple[Cell, int | None]]:
    """A cell for each axis and place, of mechanisms and of layers."""
    keys: ComplexityKeys = asked.keys
    given = keys.model_dump(exclude={"along", "sizes", "claims"})
    given["claims"] = tuple((n, tuple(c.model_dump(exclude_defaults=True).items())) for n, c in keys.claims.items())
    for along, at in product(keys.along, asked.grid.combine("threads", "batch", "heads", "causal")):
        sizes, heads = _list_sizes(asked, along, at["heads"]), at["heads"]
        width = max(sizes) if along == "width" else keys.width
        for n, d in _list_widths(along, sizes, heads, width):
            if d % n:
                raise UsageError(f"{asked.task}: {n} heads do not divide a width of {d}")
        _check_claims(asked, along, sizes)
        length = max(sizes) if along == "length" else keys.length
        place = Place(seq_len=length, max_len=length, head_dim=width // heads, inputs=f"growing {along}", **at)
        for of_blocks in [False] * asked.variants + [True] * asked.blocks:
            yield asked.cell(place, of_blocks=of_blocks, along=(along,), sizes=sizes, **given), None


def _list_widths(along: Along, sizes: Sequence[int], heads: int, width: int) -> list[tuple[int, int]]:
    """Heads and width of each size."""
    if along == "heads":
        return [(size, width) for size in sizes]
    return [(heads, size) for size in sizes] if along == "width" else [(heads, width)]


def _check_claims(asked: Asked, along: Along, sizes: Sequence[int]) -> None:
    """Claims are about something that there is, and have a value above 0 at each size: exponents are of logarithms."""
    from ...layers.named import check_layer

    letter = {"length": "N", "width": "D", "heads": "H", "causal": "C"}[along]
    for name, claim in asked.keys.claims.items():
        check_layer(name)
        for size, formula in product(sizes, (claim.time, claim.memory, claim.parameters, claim.sequential)):
            if formula is not None and evaluate(formula, dict.fromkeys(NAMES, 2.0) | {letter: size}) <= 0:
                raise UsageError(f"{asked.task}: claim of {name}: {formula!r} is 0 for {letter} = {size}")


def _list_sizes(asked: Asked, along: Along, heads: int) -> tuple[int, ...]:
    """All sizes of a sweep, in order."""
    if along == "causal":
        return (1, 2)
    usual = {
        "length": asked.grid["seq_len"],
        "width": [heads * d for d in asked.grid["head_dim"]],
        "heads": [h for h in HEADS if asked.keys.width % h == 0],
    }
    sizes = tuple(sorted(set(asked.keys.sizes or usual[along])))
    if len(sizes) <= asked.keys.octaves:
        raise UsageError(
            f"{asked.task}: {len(sizes)} sizes along {along}; give more than octaves, {asked.keys.octaves}"
        )
    return sizes


def judge(case: Case, row: Row, at: Callable[..., None]) -> Record:
    """Measure a sweep, and hold its exponents to the claim."""
    from ...bench.measuring.jobs import TIMING
    from .sweep import measure

    keys: ComplexityKeys = case.keys
    sweep = measure(case, lambda: at(TIMING))
    last, claim = sweep.points[-1], keys.find_claim(case.variant)
    row.mode = "forward_backward" if keys.training else "forward"
    row.latency_ms, row.latency_ms_low, row.latency_ms_high = (x and 1e3 * x for x in last.seconds)
    row.peak_memory_bytes, row.parameters, row.rounds = last.bytes, sweep.parameters, len(sweep.rounds)
    row.oracle_error = sweep.error
    row.seq_len = row.kv_len = last.spot.length
    row.heads, row.head_dim = last.spot.heads, last.spot.width // last.spot.heads
    row.extra = {
        "of": "layer" if case.cell.of_blocks else "mechanism",
        "along": keys.along[0],
        "smallest": sweep.sizes[0],
        "reached": sweep.sizes[-1],
        "stopped": sweep.stopped,
        "weights": sweep.weights,
        "sequential": sweep.sequential,
        "source": claim and claim.source,
    }
    row.extra |= _tell("time", fit(sweep.sizes, sweep.rounds, keys.octaves), sweep, keys, claim and claim.time)
    counted = [point.bytes for point in sweep.points if point.bytes]
    if len(counted) == len(sweep.points) and keys.along != ("causal",):
        row.extra |= _tell("memory", fit(sweep.sizes, [counted], keys.octaves), sweep, keys, claim and claim.memory)
    if claim and claim.parameters:
        row.extra["weights_claim"] = claim.parameters
        row.extra["weights_claimed"] = round(evaluate(claim.parameters, sweep.points[0].spot.names))
    if claim and claim.sequential:
        row.extra["sequential_claimed"] = round(evaluate(claim.sequential, last.spot.names))
    rounds = [[round(1e3 * x, 6) for x in values] for values in sweep.rounds]
    return Record(row, {"sizes": list(sweep.sizes), "rounds_ms": rounds, "bytes": counted})


def _tell(what: str, found: Estimate, sweep: Sweep, keys: ComplexityKeys, formula: str | None) -> dict[str, Any]:
    """An exponent, what is claimed of it, and the verdict."""
    told: dict[str, Any] = {f"{what}_exponent": found.value, f"{what}_low": found.low, f"{what}_high": found.high}
    if formula:
        values = [evaluate(formula, point.spot.names) for point in sweep.points]
        claimed = fit(sweep.sizes, [values], keys.octaves).value
        told |= {f"{what}_claim": formula, f"{what}_claimed": claimed}
        told[f"{what}_verdict"] = decide(found, claimed, keys.tolerance)
        if keys.along[0] in ("length", "width") and sweep.sizes[0] * 2**keys.octaves > sweep.sizes[-1]:
            told[f"{what}_verdict"] = f"inconclusive: less than {keys.octaves} octaves"
    return told


def fit(sizes: Sequence[int], rounds: Sequence[Sequence[float]], octaves: int) -> Estimate:
    """The exponent of what was measured at some sizes, a list a round, over the last octaves.

    Its interval is that of a straight line through the rounds' geometric means, so that a bend widens it; of two sizes,
    through which every line goes, that of the rounds' own exponents."""
    kept = [i for i, size in enumerate(sizes) if size * 2**octaves >= sizes[-1]]
    xs = [sizes[i] for i in kept]
    if len(xs) > 2 or len(rounds) == 1:
        means = [math.exp(sum(math.log(values[i]) for values in rounds) / len(rounds)) for i in kept]
        return exponent(xs, means)
    mean = mean_of([math.log(values[-1] / values[kept[0]]) / math.log(xs[-1] / xs[0]) for values in rounds])
    return Estimate(mean.value, *(mean.interval() or (None, None)))


def decide(found: Estimate, claimed: float, tolerance: float) -> str:
    """The verdict on an exponent, by the rule of `ComplexityKeys`. An exact one stands for its interval."""
    low, high = (found.value if end is None else end for end in (found.low, found.high))
    if claimed - tolerance <= low and high <= claimed + tolerance:
        return "reproduced"
    if high < claimed - tolerance:
        return "contradicted: grows more slowly"
    return "contradicted: grows faster" if low > claimed + tolerance else "inconclusive"


def guess(case: Case, best: Ceiling) -> Guess:
    """All calls of a sweep, of sizes that the limits allow."""
    from ...bench.planning.cost_estimate import CALLS
    from .sweep import guess_call, list_spots

    seconds = [guess_call(case, spot, best) for spot in list_spots(case)]
    allowed = [s for s in seconds if s <= case.keys.most_s]
    calls = case.cell.effort.rounds * PASSES + UNTIMED
    return Guess(sum(allowed) * calls / CALLS, 0, case.keys.most_bytes)


def _columns() -> dict[str, str]:
    found = {
        "of": "a layer, x to x, or a mechanism alone",
        "along": "what grows: length, width, heads or causal",
        "smallest": "the first size",
        "reached": "the last size",
        "stopped": "why there is no larger one",
        "weights": "parameters at the first size, biases not counted",
        "weights_claim": "their published number",
        "weights_claimed": "that at the first size",
        "sequential": "steps one after another at the last size, as declared",
        "sequential_claimed": "the published number",
        "source": "who claims it",
    }
    for what in ("time", "memory"):
        found |= {
            f"{what}_exponent": f"of {what}, over the last octaves",
            f"{what}_low": "the lower end of its 95% interval",
            f"{what}_high": "the upper end",
            f"{what}_claim": "the published formula",
            f"{what}_claimed": "its exponent over the same sizes",
            f"{what}_verdict": "by the suite's rule",
        }
    return found


COMPLEXITY = Task(
    name="complexity",
    words=("complexity",),
    keys=ComplexityKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    blocks=True,
    columns=_columns(),
    sections=(
        Section(name="complexity", task="complexity", title="Growth and claims", layout="complexity", y="latency_ms"),
    ),
)
