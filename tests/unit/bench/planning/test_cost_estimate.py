"""Estimated time and memory of plans, compared with published runs. The rates of the machine are fixed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny_suites
from tiny_suites import load_suite

import efficient_attn as ea
from efficient_attn.bench.case import Case
from efficient_attn.bench.measuring import parallel
from efficient_attn.bench.planning import cost_estimate
from efficient_attn.bench.planning.cost_estimate import INPUT_COPIES, SESSION_S, estimate_case, estimate_cost
from efficient_attn.bench.planning.plan import make_plan
from efficient_attn.bench.task import Guess
from efficient_attn.contract.shapes import Sample, Shape
from efficient_attn.instruments.roofline import Roofline
from efficient_attn.results import store
from efficient_attn.results.shards import strip_digest

RESULTS = Path(__file__).parents[4] / "results"
# the roofline of one core of the machine of these runs, in which torch's kernels ran, as in the estimates
BEST = Roofline(159e9, 28.9e9)
SUITES = ("quickstart", "promises")


@pytest.fixture(autouse=True, scope="module")
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():  # the suites load plug-ins
        yield


@cache
def _published(suite: str) -> list[tuple[Case, Any]]:
    """Planned cases with their published rows, matched by the part of the key that people read."""
    rows = {strip_digest(record.row.case_key): record.row for record in store.read(RESULTS / f"{suite}_xeon")}
    cases = [(case, rows.get(strip_digest(case.key))) for case in make_plan(load_suite(suite))]
    return [(case, row) for case, row in cases if row is not None and row.latency_ms]


@pytest.mark.parametrize("suite", SUITES)
def test_times_are_within_a_factor_of_two_of_published_ones(suite: str) -> None:
    published = _published(suite)
    assert len(published) > 40
    ratios = [estimate_case(case, BEST).call_s * 1e3 / row.latency_ms for case, row in published]
    near = sum(0.5 <= ratio <= 2 for ratio in ratios)
    assert near >= 0.95 * len(ratios), sorted(ratios)
    assert 0.7 < statistics.geometric_mean(ratios) < 1.4


def test_only_trainings_take_less_time_with_several_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "count_usable_cores", lambda: 64)
    head = 'title = "t"\naxes = { seq_len = [32], threads = [1] }\nlearning_rates = [1e-3, 2e-3]\npairs = 2\n'
    head += '[[variant]]\nname = "full"\n[[variant]]\nname = "linear"\n[[variant]]\nname = "mqa"\n'
    training = '[[part]]\nname = "training"\nmeasure = ["mqar"]\n'
    timed = '[[part]]\nname = "times"\nmeasure = ["forward"]\n'

    def estimate(text: str, jobs: int) -> float:
        return estimate_cost(tiny_suites.plan(head + text), best=BEST, jobs=jobs).wall_s - SESSION_S

    one = estimate(training, 1)
    assert estimate(training, 2) == pytest.approx(one / 2)
    peaks = [estimate_cost(tiny_suites.plan(head + training), best=BEST, jobs=n).peak_bytes for n in (1, 2)]
    assert peaks[1] == 2 * peaks[0], "each worker has a model of its own"
    chains: Counter[Any] = Counter()
    for case in (cases := tiny_suites.plan(head + training)):
        chains[str(case.variant)] += estimate_cost(cases, best=BEST).cases[case.key][0]  # type: ignore[assignment]
    assert estimate(training, 64) == pytest.approx(max(chains.values())), "attempts of a mechanism follow each other"
    assert estimate(training + timed, 2) == pytest.approx(one / 2 + estimate(timed, 1))


@pytest.mark.parametrize("suite", SUITES)
def test_memory_is_within_a_factor_of_two_of_published_ones(suite: str) -> None:
    sizes = [
        (estimate_case(case, BEST).call_bytes, r.peak_memory_bytes or r.state_bytes) for case, r in _published(suite)
    ]
    ratios = [estimated / measured for estimated, measured in sizes if measured]
    assert len(ratios) > 30
    assert sum(0.5 <= ratio <= 2 for ratio in ratios) >= 0.95 * len(ratios), sorted(ratios)


@pytest.mark.parametrize("suite", SUITES)
def test_total_time_is_within_a_factor_of_two_of_published_time(suite: str) -> None:
    """The total over all cases; single estimates may differ more."""
    published = _published(suite)
    took = sum(row.latency_ms / 1e3 for _, row in published)
    assert 0.5 < sum(estimate_case(case, BEST).call_s for case, _ in published) / took < 2


def _refuse(*args: object, **options: object) -> Any:
    raise AssertionError("a mechanism was called")


@pytest.mark.parametrize("suite", SUITES)
def test_estimating_calls_no_mechanism_and_uses_short_contexts(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The roofline is measured roughly and rarely, no mechanism is called, and decode states have short contexts."""
    measurements, contexts, draw = Counter(), set(), cost_estimate.draw_inputs

    def count_contexts(case: Case, attn: ea.Attention, shape: Shape) -> Sample:
        contexts.add(shape.m)
        return draw(case, attn, shape)

    def count_measurements(*settings: object, rough: bool) -> Roofline:
        measurements[settings, rough] += 1
        return BEST

    monkeypatch.setattr(cost_estimate, "measure_roofline_rates", count_measurements)
    monkeypatch.setattr(cost_estimate, "draw_inputs", count_contexts)
    monkeypatch.setattr(ea.Attention, "forward", _refuse)
    cases = make_plan(load_suite(suite))
    estimate = estimate_cost(cases)
    assert estimate.cases.keys() == {case.key for case in cases}
    assert estimate.wall_s > 10
    configs = [case.group.config for case in cases]
    assert measurements == {((p.device, p.dtype, p.threads), True): cost_estimate.ROUGH_MEASUREMENTS for p in configs}
    assert contexts <= {
        *cost_estimate.STATE_LENGTHS,
        *(case.shape.m for case in cases if case.shape.m <= max(cost_estimate.STATE_LENGTHS)),
    }


# -- components of the estimate ------------------------------------------------------------------------------------


def test_totals_follow_from_the_costs_of_cases() -> None:
    cases = tiny_suites.plan(variants=["full", "linear"], axes={"seq_len": [64, 128]})
    estimate = estimate_cost(cases, best=BEST)
    assert estimate.wall_s == pytest.approx(SESSION_S + sum(seconds for seconds, _ in estimate.cases.values()))
    assert all(seconds > 0 and size > 0 for seconds, size in estimate.cases.values())
    inputs = INPUT_COPIES * sum(estimate_case(case, BEST).input_bytes for case in cases[2:])
    assert estimate.peak_bytes == inputs + max(estimate_case(case, BEST).call_bytes for case in cases[2:])


def test_baselines_that_exceed_the_time_budget_are_named() -> None:
    """At a budget that a call of 64 tokens satisfies, and one of 65,536 tokens exceeds."""
    cases = tiny_suites.plan(variants=["full", "linear"], axes={"seq_len": [64, 65536]})
    assert estimate_cost(cases, best=BEST).over_budget == ("full at 65,536 (1 s)",)
    reason = "no speedups are expected where a call of the baseline exceeds the time budget: full at 65,536 (1 s)"
    assert estimate_cost(cases, best=BEST).describe_over_budget() == reason
    assert estimate_cost(cases[:2], best=BEST).describe_over_budget() == ""


def test_inputs_and_decode_states_have_exact_sizes() -> None:
    assert estimate_case(tiny_suites.case("full", seq_len=128), BEST).input_bytes == 3 * 2 * 128 * 8 * 4
    whole = estimate_case(tiny_suites.case("full", mode="decode", seq_len=2048), BEST)
    assert whole.call_bytes == 2 * 2 * 2048 * 8 * 4  # keys and values
    fixed = [estimate_case(tiny_suites.case("linear", mode="decode", seq_len=n), BEST).call_bytes for n in (1024, 8192)]
    assert fixed[0] == fixed[1]


def test_more_work_costs_more() -> None:
    def cost(variant: str = "full", **axes: Any) -> Guess:
        return estimate_case(tiny_suites.case(variant, **axes), BEST)

    assert cost(seq_len=4096).call_s > 3 * cost(seq_len=2048).call_s
    assert cost(seq_len=2048).call_s > 1.5 * cost(seq_len=2048, causal=True).call_s
    assert cost(seq_len=2048, mode="forward_backward").call_s > 3 * cost(seq_len=2048).call_s
    assert cost(seq_len=2048, mode="forward_backward").call_bytes > 3 * cost(seq_len=2048).call_bytes
    assert cost("linear", seq_len=8192).call_s < cost(seq_len=8192).call_s


def test_memory_of_a_dense_backend_includes_its_scores() -> None:
    n = 512
    fused, dense = (
        estimate_case(tiny_suites.case(f"full{b}", seq_len=n), BEST).call_bytes for b in ("", ":backend=dense")
    )
    assert dense - fused == 2 * (2 * n * n * 4)
    training = estimate_case(tiny_suites.case("full:backend=dense", mode="forward_backward", seq_len=n), BEST)
    assert training.call_bytes >= 2 * (dense - fused)


def test_the_time_budget_limits_the_cost_of_a_case() -> None:
    costs = []
    for n in (2**16, 2**17, 2**18):
        (case,) = tiny_suites.plan(axes={"seq_len": [n]})
        assert estimate_case(case, BEST).call_s > case.group.sampling.budget_s
        costs += [seconds for seconds, _ in estimate_cost([case], best=BEST).cases.values()]
    assert costs[0] == costs[1] == costs[2]


def test_slow_machines_take_longer() -> None:
    cases = tiny_suites.plan(axes={"seq_len": [2048]})
    slow = estimate_cost(cases, best=Roofline(BEST.gemm_flops_per_s / 4, BEST.bytes_per_s / 4))
    assert slow.wall_s > estimate_cost(cases, best=BEST).wall_s


def test_cases_on_an_absent_device_have_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    absent = estimate_cost(tiny_suites.plan(axes={"device": ["cuda"]}), best=BEST)
    assert (absent.wall_s, absent.peak_bytes, absent.cases) == (0.0, 0, {})
    assert "CUDA" in absent.absent["cuda"]
    cases = tiny_suites.plan(axes={"device": ["cpu", "cuda"]})
    both = estimate_cost(cases, best=BEST)
    assert both.cases.keys() == {case.key for case in cases if case.group.config.device == "cpu"}
    assert both.absent == absent.absent
    assert both.wall_s > SESSION_S
    assert estimate_cost(tiny_suites.plan(), best=BEST).absent == {}


def test_compile_time_counts_once_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, compiled = tiny_suites.case(), tiny_suites.case(compiled=True)
    waits = estimate_case(compiled, BEST).compile_s
    assert waits > estimate_case(plain, BEST).compile_s == 0
    workers = 1 + plain.group.sampling.processes
    assert estimate_cost([compiled], best=BEST).wall_s - estimate_cost([plain], best=BEST).wall_s == pytest.approx(
        workers * waits
    )
    with tiny_suites.isolated_registry():
        case = tiny_suites.case(tiny_suites.register_modified("zz_compiles_itself"))
        monkeypatch.setattr(type(case.create()), "compiles", True)
        assert estimate_case(case, BEST).compile_s == waits


def test_an_empty_plan_costs_nothing() -> None:
    assert estimate_cost([]).wall_s == 0.0


def test_unsupported_cases_cost_little() -> None:
    with tiny_suites.isolated_registry():
        tiny_suites.register_modified("no_decoding", traits=ea.Traits(decode=False))
        case = tiny_suites.case("no_decoding", mode="decode")
        assert estimate_case(case, BEST) == Guess(0.0, 0, 0)
        assert estimate_cost([case], best=BEST).wall_s < SESSION_S + 2
