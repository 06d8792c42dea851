"""A sweep: one mechanism or layer at all sizes along one axis, its calls timed in turns, its memory counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...bench.case import Case
from ...bench.measuring.output_comparison import TOLERANCE, Invalid
from ...bench.measuring.workload import BACKWARD
from ...bench.planning.cost_estimate import LAUNCH_S, OTHERWISE
from ...contract.mask import Mask
from ...contract.shapes import Dims, Shape
from ...instruments.distance import relative_error
from ...instruments.memory import footprint, training_footprint
from ...instruments.roofline import Ceiling
from ...instruments.timing import Timed, TooSlow, calibrate, first_call, share_turns, take_rounds
from ...layers.baselines import Baseline
from ...layers.multi_head import MultiHeadAttention
from ...layers.named import find_baseline, make_layer
from ...registry import create
from ...results.stats import Estimate, middle, typical
from ...spec import parse
from ...units import size as write_bytes
from .formulas import evaluate

STEP_S = 2e-5  # of a recurrence, however narrow it is
CHECKED = 256  # length at which a mechanism is held to its oracle
PROCESSES = 1  # that measure a sweep: its sizes are compared with each other only


@dataclass(frozen=True, kw_only=True)
class Spot:
    """The sizes of one call."""

    length: int
    width: int
    heads: int
    causal: bool
    kernel: int = 1

    def size(self, along: str) -> int:
        """What grows."""
        return 1 + self.causal if along == "causal" else getattr(self, along)

    @property
    def names(self) -> dict[str, float]:
        """As formulas have them."""
        return {"N": self.length, "D": self.width, "H": self.heads, "C": 1 + self.causal, "k": self.kernel}


def list_spots(case: Case) -> list[Spot]:
    """The sizes of all calls of a case's sweep, in order."""
    place, keys = case.cell.place, case.keys
    usual = Spot(
        length=keys.length,
        width=keys.width,
        heads=place.heads,
        causal=place.causal,
        kernel=json.loads(case.options).get("kernel", 1) if case.family == "baseline" else 1,
    )
    along = keys.along[0]
    if along == "causal":
        return [replace(usual, causal=hidden) for hidden in (False, True)]
    return [replace(usual, **{along: value}) for value in keys.sizes]


class Subject:
    """What is called at one spot, and what it is given."""

    def __init__(self, case: Case, spot: Spot) -> None:
        place, seed = case.cell.place, case.cell.effort.seed
        self.training, self.device = case.keys.training, place.device
        self.mask = Mask(causal=spot.causal)
        to: dict[str, Any] = {"device": place.device, "dtype": getattr(torch, place.dtype)}
        generator = torch.Generator().manual_seed(seed)
        if case.cell.of_blocks:
            sizes = {"heads": spot.heads, "length": spot.length, "causal": spot.causal}
            self.module: nn.Module = make_layer(case.variant, d_model=spot.width, seed=seed, **sizes).to(**to)
            self.given = [torch.randn(place.batch, spot.length, spot.width, generator=generator).to(**to)]
            self.more: dict[str, Tensor] = {}
        else:
            width = spot.width // spot.heads
            dims = Dims(heads=spot.heads, kv_heads=None, head_dim=width, value_dim=width, max_len=spot.length)
            attn = create(str(parse(case.variant)), dims=replace(dims, kv_heads=case.kv_heads), seed=seed).to(**to)
            shape = Shape(place.batch, spot.heads, attn.kv_heads or spot.heads, spot.length, spot.length, width, width)
            q, k, v, self.more = attn.sample(shape, generator=generator, **to)
            self.module, self.given = attn, [x for x in (q, k, v) if x is not None]
        if self.training:
            self.given = [x.detach().requires_grad_() for x in self.given]

    def call(self) -> object:
        if self.training:
            return self.backward(self.forward())
        with torch.no_grad():
            return self.forward()

    def forward(self) -> Tensor:
        if isinstance(self.module, Baseline):
            return self.module(*self.given)
        if isinstance(self.module, MultiHeadAttention):
            return self.module(*self.given, mask=self.mask)
        return self.module(*self.given, *[None] * (3 - len(self.given)), self.mask, **self.more)

    def backward(self, out: Tensor) -> object:
        sources = [*self.given, *self.module.parameters()]
        return torch.autograd.grad(out, sources, torch.ones_like(out), allow_unused=True)

    def count_bytes(self) -> int | None:
        """What a call holds above what was there before, at its most."""
        if self.training:
            return training_footprint(self.forward, self.backward, device=self.device).peak
        return footprint(self.call, device=self.device).peak

    def error(self, dtype: str) -> float | None:
        """How far it is from its dense oracle; None for baselines, which have none. `Invalid` where that is too far."""
        oracle = deepcopy(self.module)
        attn: Any = getattr(oracle, "attn", oracle)
        if isinstance(oracle, Baseline):
            return None
        attn.backend = "dense"
        with torch.no_grad():
            own, module = self.forward(), self.module
            self.module = oracle
            wanted, self.module = self.forward(), module
        error = relative_error(own, wanted)
        if not error <= TOLERANCE[dtype]:
            raise Invalid(f"relative error {error:.2g} against its dense oracle, more than {TOLERANCE[dtype]:.0e}")
        return error


@dataclass(frozen=True)
class Point:
    """One size, measured: seconds a call with their interval, bytes."""

    spot: Spot
    seconds: Estimate
    bytes: int | None


@dataclass(frozen=True)
class Sweep:
    """All points of a sweep in order, by their sizes. rounds: seconds by size, a list a round. stopped: why it does not
    go on. parameters, weights: at the first size, with biases and without. sequential: steps at the last, if declared.
    error: against the dense oracle."""

    points: Sequence[Point]
    sizes: Sequence[int]
    rounds: Sequence[Sequence[float]]
    stopped: str | None
    parameters: int
    weights: int
    sequential: int | None
    error: float | None


def measure(case: Case, at: Callable[[], None] = lambda: None) -> Sweep:
    """Find the sizes that the limits allow, and time them in turns. at: told before each new size."""
    place, effort = case.cell.place, case.cell.effort
    subjects, counted, stopped = _find_sizes(case, at)
    timed = {str(i): _timed(subject) for i, (_, subject) in enumerate(subjects)}
    paces = {name: calibrate(one, budget_s=effort.budget_s, device=place.device) for name, one in timed.items()}
    turns = share_turns(paces, rounds=effort.rounds, processes=PROCESSES, budget_s=effort.budget_s)
    taken: list[list[float]] = []
    alone = place.device == "cpu" and torch.get_num_threads() == 1
    rounds = dict.fromkeys(timed, effort.rounds)
    for found in take_rounds(timed, turns, rounds, seed=effort.seed, device=place.device, alone=alone):
        at()
        for error in found.failed.values():
            raise error
        taken.append([middle(found.samples[name]) / 1e3 for name in timed])
    points = [Point(spot, typical([values[i] for values in taken]), counted[i]) for i, (spot, _) in enumerate(subjects)]
    named = [(name, p.numel()) for name, p in subjects[0][1].module.named_parameters()]
    return Sweep(
        points=points,
        sizes=[spot.size(case.keys.along[0]) for spot, _ in subjects],
        rounds=taken,
        stopped=stopped,
        parameters=sum(count for _, count in named),
        weights=sum(count for name, count in named if "bias" not in name),
        sequential=_count_steps(subjects[-1][1].module, points[-1].spot.length),
        error=_short(case, subjects[0][0]).error(place.dtype),
    )


def _short(case: Case, spot: Spot) -> Subject:
    """The same at a length at which its oracle is cheap."""
    return Subject(case, replace(spot, length=min(spot.length, CHECKED)))


def _count_steps(module: nn.Module, length: int) -> int | None:
    """Steps one after another: what a baseline declares; one where each row can be worked out without the others."""
    if isinstance(module, Baseline):
        return module.cost.sequential(length)
    attn: Any = getattr(module, "attn", module)
    return 1 if attn.traits.rows_alone else None


def guess_call(case: Case, spot: Spot, best: Ceiling) -> float:
    """Seconds of a call, as far as that can be told from what is declared."""
    place, keys = case.cell.place, case.keys
    work = 0.0
    if case.cell.of_blocks and (cls := find_baseline(case.variant)):
        claim = keys.find_claim(case.variant)
        work = 8 * evaluate(claim.time, spot.names) if claim else 0.0
        recurrent = cls.cost.sequential(spot.length) if hasattr(cls, "cost") else 1
        return place.batch * work / best.gemm_flops_per_s + recurrent * STEP_S
    width = spot.width // spot.heads
    attn = create(
        case.variant, dims=Dims(heads=spot.heads, head_dim=width, max_len=spot.length, kv_heads=case.kv_heads)
    )
    work = 4 * width * spot.heads * attn.growth.cost(spot.length, spot.length, spot.causal)
    work += 8 * spot.length * spot.width**2 if case.cell.of_blocks else 0
    return place.batch * work * (1 + BACKWARD * keys.training) / best.gemm_flops_per_s / OTHERWISE + LAUNCH_S


def _timed(subject: Subject) -> Timed:
    def run(calls: int) -> None:
        for _ in range(calls):
            subject.call()

    return Timed(run)


def _find_sizes(case: Case, at: Callable[[], None]) -> tuple[list[tuple[Spot, Subject]], list[int | None], str | None]:
    """The sizes that take no more than they may, the bytes of a call at each, and what ended them."""
    keys, subjects, counted, seconds = case.keys, [], [], []
    along = keys.along[0]
    for spot in list_spots(case):
        at()
        where = f"at {along} {spot.size(along):,}"
        if (about := _extrapolate(seconds)) > keys.most_s:
            return subjects, counted, f"a call would take about {about:.2g} s {where}"
        if (about := _extrapolate([b or 0 for b in counted])) > keys.most_bytes:
            return subjects, counted, f"a call would take about {write_bytes(int(about))} {where}"
        subject = Subject(case, spot)
        try:
            took = [_call(case, subject)]
        except TooSlow as error:
            if len(subjects) < 2:
                raise
            return subjects, counted, f"{where} {error}"
        bytes_ = subject.count_bytes()
        took.append(_call(case, subject))
        if len(subjects) > 1:  # growth needs two sizes, whatever they take
            if min(took) > keys.most_s:
                return subjects, counted, f"a call takes {min(took):.2g} s {where}"
            if (bytes_ or 0) > keys.most_bytes:
                return subjects, counted, f"a call takes {write_bytes(bytes_ or 0)} {where}"
        subjects.append((spot, subject))
        counted.append(bytes_)
        seconds.append(min(took))
    return subjects, counted, None


def _call(case: Case, subject: Subject) -> float:
    """Seconds of a call; far more than it may take is an error."""
    budget = 10 * case.keys.most_s + case.cell.effort.budget_s
    return first_call(_timed(subject), budget_s=budget, device=case.cell.place.device)


def _extrapolate(values: Sequence[float]) -> float:
    """What follows values that grow by factors; of none, or of one, nothing is known."""
    if len(values) < 2 or not values[-2]:
        return 0.0
    return values[-1] * max(1.0, values[-1] / values[-2])
