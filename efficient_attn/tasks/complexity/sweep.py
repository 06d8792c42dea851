"""A sweep: one mechanism or layer at all sizes along one axis, with interleaved timing and counted memory."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...bench.case import Case
from ...bench.measuring.row_errors import TOLERANCE, InvalidResult
from ...bench.measuring.workload import BACKWARD
from ...bench.planning.cost_estimate import DEFAULT_EFFICIENCY, LAUNCH_S
from ...contract import Dims, Mask, Shape
from ...instruments.distance import relative_error
from ...instruments.memory import measure_footprint
from ...instruments.roofline import Roofline
from ...instruments.timing import TimedCall, TooSlow, calibrate, plan_samples, run_rounds, time_first_call
from ...layers.baselines import Baseline
from ...layers.multi_head import MultiHeadAttention
from ...layers.named import find_baseline, make_layer
from ...registry import create
from ...results.stats import Estimate, estimate_geometric_mean, median
from ...units import size as format_size
from .formulas import evaluate

STEP_S = 2e-5  # least seconds of a step of a recurrence
VERIFIED_LENGTH = 256  # at which a mechanism is verified, or the first length if it is shorter
PROCESSES = 1  # that measure a sweep, as its sizes are only compared with each other


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """The sizes of one call."""

    length: int
    width: int
    heads: int
    causal: bool
    kernel: int = 1

    def size(self, along: str) -> int:
        """The size along the axis."""
        return 1 + self.causal if along == "causal" else getattr(self, along)

    @property
    def variables(self) -> dict[str, float]:
        """The variables of formulas."""
        return {"N": self.length, "D": self.width, "H": self.heads, "C": 1 + self.causal, "k": self.kernel}


def list_points(case: Case) -> list[SweepPoint]:
    """The sizes of all calls of a case's sweep, in order."""
    config, keys = case.group.config, case.keys
    defaults = SweepPoint(
        length=keys.length,
        width=keys.width,
        heads=config.heads,
        causal=config.causal,
        kernel=json.loads(case.options).get("kernel", 1) if case.family == "baseline" else 1,
    )
    along = keys.along[0]
    if along == "causal":
        return [replace(defaults, causal=causal) for causal in (False, True)]
    return [replace(defaults, **{along: value}) for value in keys.sizes]


class SweepCall:
    """A call at one point of a sweep, with its inputs."""

    def __init__(self, case: Case, point: SweepPoint) -> None:
        config, seed = case.group.config, case.group.sampling.seed
        self.point, self.training, self.device = point, case.keys.training, config.device
        self.mask = Mask(causal=point.causal)
        factory_options: dict[str, Any] = {"device": config.device, "dtype": getattr(torch, config.dtype)}
        generator = torch.Generator().manual_seed(seed)
        if case.group.of_blocks:
            sizes = {"heads": point.heads, "length": point.length, "causal": point.causal}
            layer = make_layer(case.variant, d_model=point.width, seed=seed, **sizes)
            self.module: nn.Module = layer.to(**factory_options)
            x = torch.randn(config.batch, point.length, point.width, generator=generator)
            self.inputs = [x.to(**factory_options)]
            self.extra_inputs: dict[str, Tensor] = {}
        else:
            n, heads, width = point.length, point.heads, point.width // point.heads
            dims = Dims(heads=heads, kv_heads=case.kv_heads, head_dim=width, value_dim=width, max_len=n)
            attn = create(case.variant, dims=dims, seed=seed).to(**factory_options)
            shape = Shape(config.batch, heads, attn.kv_heads or heads, n, n, width, width)
            q, k, v, self.extra_inputs = attn.sample(shape, generator=generator, **factory_options)
            self.module, self.inputs = attn, [x for x in (q, k, v) if x is not None]
        if self.training:
            self.inputs = [x.detach().requires_grad_() for x in self.inputs]

    def call(self) -> object:
        """One call, with gradients if it is a training step."""
        if self.training:
            return self.backward(self.forward())
        with torch.no_grad():
            return self.forward()

    def forward(self, module: nn.Module | None = None) -> Tensor:
        """The output of the module, or of another one for comparison."""
        module = self.module if module is None else module
        if isinstance(module, Baseline):
            return module(*self.inputs)
        if isinstance(module, MultiHeadAttention):
            return module(*self.inputs, mask=self.mask)
        return module(*self.inputs, *[None] * (3 - len(self.inputs)), self.mask, **self.extra_inputs)

    def backward(self, out: Tensor) -> object:
        """The gradients with respect to inputs and parameters."""
        sources = [*self.inputs, *self.module.parameters()]
        return torch.autograd.grad(out, sources, torch.ones_like(out), allow_unused=True)

    def count_bytes(self) -> int | None:
        """The peak memory of a call beyond what existed before."""
        if self.training:
            return measure_footprint(self.forward, self.backward, device=self.device).peak
        return measure_footprint(self.call, device=self.device).peak

    def verify(self, dtype: str) -> float | None:
        """The error against the dense reference; None for baselines. Raises `InvalidResult` above the tolerance."""
        if isinstance(self.module, Baseline):
            return None
        oracle = deepcopy(self.module)
        attn: Any = getattr(oracle, "attn", oracle)
        attn.backend = "dense"
        with torch.no_grad():
            error = relative_error(self.forward(), self.forward(oracle))
        if not error <= TOLERANCE[dtype]:
            allowed = f"{TOLERANCE[dtype]:.0e}"
            raise InvalidResult(f"relative error {error:.2g} against its dense reference, more than {allowed}")
        return error


@dataclass(frozen=True)
class PointResult:
    """One size, measured: seconds a call with their interval, bytes."""

    point: SweepPoint
    seconds: Estimate
    bytes: int | None


@dataclass(frozen=True)
class SweepResult:
    """All points of a sweep in order of size. rounds: seconds by size, one list for each round. stop_reason: why there
    is no larger size. parameters, weights: at the first size, with and without biases. sequential: steps at the last
    size, if declared. error: against the dense reference."""

    results: Sequence[PointResult]
    sizes: Sequence[int]
    rounds: Sequence[Sequence[float]]
    stop_reason: str | None
    parameters: int
    weights: int
    sequential: int | None
    error: float | None


def measure_sweep(case: Case, on_step: Callable[[], None] = lambda: None) -> SweepResult:
    """Find the sizes within the limits, and time them interleaved. on_step: called before each size and round."""
    config, sampling = case.group.config, case.group.sampling
    calls, n_bytes, stop_reason = _measure_sizes(case, on_step)
    timed = {str(i): _make_timed(call) for i, call in enumerate(calls)}
    costs = {name: calibrate(call, budget_s=sampling.budget_s, device=config.device) for name, call in timed.items()}
    plans = plan_samples(costs, rounds=sampling.rounds, processes=PROCESSES, budget_s=sampling.budget_s)
    seconds: list[list[float]] = []
    rounds = run_rounds(
        timed,
        plans,
        dict.fromkeys(timed, sampling.rounds),
        seed=sampling.seed,
        device=config.device,
        single_thread=config.device == "cpu" and torch.get_num_threads() == 1,
    )
    for round_result in rounds:
        on_step()
        for error in round_result.errors.values():
            raise error
        seconds.append([median(round_result.samples[name]) / 1e3 for name in timed])
    results = [
        PointResult(call.point, estimate_geometric_mean([values[i] for values in seconds]), n_bytes[i])
        for i, call in enumerate(calls)
    ]
    first = calls[0]
    parameters = [(name, p.numel()) for name, p in first.module.named_parameters()]
    short_point = replace(first.point, length=min(first.point.length, VERIFIED_LENGTH))
    return SweepResult(
        results=results,
        sizes=[call.point.size(case.keys.along[0]) for call in calls],
        rounds=seconds,
        stop_reason=stop_reason,
        parameters=sum(count for _, count in parameters),
        weights=sum(count for name, count in parameters if "bias" not in name),
        sequential=_count_sequential_steps(calls[-1].module, results[-1].point.length),
        error=SweepCall(case, short_point).verify(config.dtype),
    )


def _count_sequential_steps(module: nn.Module, length: int) -> int | None:
    """Sequential steps: declared by a baseline; one if each row can be computed independently."""
    if isinstance(module, Baseline):
        return module.cost.sequential(length)
    attn: Any = getattr(module, "attn", module)
    return 1 if attn.traits.rows_alone else None


def estimate_call_s(case: Case, point: SweepPoint, best: Roofline) -> float:
    """Estimated seconds of a call, from declared growth."""
    config, keys = case.group.config, case.keys
    if case.group.of_blocks and (cls := find_baseline(case.variant)):
        claim = keys.find_claim(case.variant)
        work = 8 * evaluate(claim.time, point.variables) if claim else 0.0
        sequential_steps = cls.cost.sequential(point.length) if hasattr(cls, "cost") else 1
        return config.batch * work / best.gemm_flops_per_s + sequential_steps * STEP_S
    width = point.width // point.heads
    dims = Dims(heads=point.heads, head_dim=width, max_len=point.length, kv_heads=case.kv_heads)
    attn = create(case.variant, dims=dims)
    work = 4 * width * point.heads * attn.growth.cost(point.length, point.length, point.causal)
    work += 8 * point.length * point.width**2 if case.group.of_blocks else 0
    return config.batch * work * (1 + BACKWARD * keys.training) / best.gemm_flops_per_s / DEFAULT_EFFICIENCY + LAUNCH_S


def _make_timed(call: SweepCall) -> TimedCall:
    def run(calls: int) -> None:
        for _ in range(calls):
            call.call()

    return TimedCall(run)


def _measure_sizes(case: Case, on_step: Callable[[], None]) -> tuple[list[SweepCall], list[int | None], str | None]:
    """The calls within the limits, the bytes of a call at each, and why there is no larger one."""
    keys, measured_calls, n_bytes, seconds = case.keys, [], [], []
    along = keys.along[0]
    for point in list_points(case):
        on_step()
        at_size = f"at {along} {point.size(along):,}"
        if (estimate := _extrapolate(seconds)) > keys.most_s:
            return measured_calls, n_bytes, f"a call would take about {estimate:.2g} s {at_size}"
        if (estimate := _extrapolate([b or 0 for b in n_bytes])) > keys.most_bytes:
            return measured_calls, n_bytes, f"a call would take about {format_size(int(estimate))} {at_size}"
        call = SweepCall(case, point)
        try:
            times = [_time_call(case, call)]
        except TooSlow as error:
            if len(measured_calls) < 2:
                raise
            return measured_calls, n_bytes, f"{at_size} {error}"
        peak_bytes = call.count_bytes()
        times.append(_time_call(case, call))
        if len(measured_calls) > 1:  # an exponent needs two sizes, even if they exceed the limits
            if min(times) > keys.most_s:
                return measured_calls, n_bytes, f"a call takes {min(times):.2g} s {at_size}"
            if (peak_bytes or 0) > keys.most_bytes:
                return measured_calls, n_bytes, f"a call takes {format_size(peak_bytes or 0)} {at_size}"
        measured_calls.append(call)
        n_bytes.append(peak_bytes)
        seconds.append(min(times))
    return measured_calls, n_bytes, None


def _time_call(case: Case, call: SweepCall) -> float:
    """Seconds of a call. Raises `TooSlow` if they far exceed the limit."""
    budget = 10 * case.keys.most_s + case.group.sampling.budget_s
    return time_first_call(_make_timed(call), budget_s=budget, device=case.group.config.device)


def _extrapolate(values: Sequence[float]) -> float:
    """The next value of a geometric sequence that does not decrease; 0 after fewer than two values."""
    if len(values) < 2 or not values[-2]:
        return 0.0
    return values[-1] * max(1.0, values[-1] / values[-2])
