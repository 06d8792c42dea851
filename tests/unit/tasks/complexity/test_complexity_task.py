"""The complexity task: planned groups, fitted exponents and verdicts. The clock counts operations."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest
import tiny_suites
import torch
from flop_clock import FlopClock
from inline_measurement import measure_cases
from torch import Tensor

from efficient_attn.bench.case import Case, as_json, group_cases
from efficient_attn.errors import UsageError
from efficient_attn.results.rows import Record
from efficient_attn.results.shards import strip_digest
from efficient_attn.results.stats import Estimate, t_quantile
from efficient_attn.tasks.complexity.complexity_task import ComplexityKeys, GrowthClaim, compute_verdict, fit_exponent

SUITE = """
title    = "trial"
measure  = ["complexity"]
rounds   = 2
max_rounds = 2
budget_s = 9
octaves  = 2
length   = 8
width    = 8
axes     = { seq_len = [16, 8, 32], heads = [1], head_dim = [4, 8, 16], threads = [1] }
variant  = [{ name = "full", backend = "dense" }]
block    = [{ name = "full", backend = "dense" }, { name = "gru" }, { name = "dense" }]

[claims]
full  = { time = "N^2 D", memory = "N D", sequential = "1", parameters = "4 D^2", source = "A & B" }
gru   = { time = "N D^2", parameters = "3 (D^2 + D^2)", sequential = "N" }
dense = { time = "N^2 D^2", parameters = "N^2 D^2", sequential = "1" }
"""

FULL = "full:backend=dense"  # torch counts the operations of its matrix products


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FlopClock:
    return FlopClock().install(monkeypatch)


def measure(cases: list[Case]) -> dict[tuple[str, str, str], Record]:
    """Records by kind (mechanism or layer), axis and variant."""
    records = [record for _, members in group_cases(cases) for record in measure_cases(members)]
    return {(str(r.row.extra["of"]), str(r.row.extra["along"]), r.row.variant): r for r in records}


@cache
def measure_suite() -> dict[tuple[str, str, str], Record]:
    """Records of SUITE, measured once; callers need the `clock` fixture."""
    return measure(tiny_suites.plan(SUITE))


# -- the plan --------------------------------------------------------------------------------------------------------


def test_each_axis_and_kind_is_a_group() -> None:
    cases = tiny_suites.plan(SUITE)
    groups = [(group.keys, group) for group, _ in group_cases(cases)]
    planned = [
        (dict(keys)["along"], group.of_blocks, group.config.seq_len, group.config.head_dim) for keys, group in groups
    ]
    assert planned == [
        (("length",), False, 32, 8),
        (("length",), True, 32, 8),
        (("width",), False, 8, 16),
        (("width",), True, 8, 16),
    ]
    assert {case.keys.sizes for case in cases} == {(8, 16, 32), (4, 8, 16)}
    assert [case.variant for case in cases] == [FULL, FULL, "gru", "dense"] * 2


def test_keys_can_be_restored_from_json() -> None:
    (case, *_) = tiny_suites.plan(SUITE)
    claim = GrowthClaim(time="N^2 D", memory="N D", sequential="1", parameters="4 D^2", source="A & B")
    assert case.keys.claims["full"] == claim
    data = json.loads(json.dumps(as_json(case)))
    restored = ComplexityKeys(**{name: _tuples(value) for name, value in data["keys"].items()})
    assert restored == case.keys
    assert restored.find_claim("full:backend=dense") == claim
    assert restored.find_claim("linear") is None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def test_claims_of_specs_precede_claims_of_names() -> None:
    keys = ComplexityKeys(claims={"linear": GrowthClaim(time="N"), "linear:chunk=8": GrowthClaim(time="N D")})
    assert (keys.find_claim("linear:chunk=8"), keys.find_claim("linear")) == (
        GrowthClaim(time="N D"),
        GrowthClaim(time="N"),
    )


def test_layer_and_mechanism_with_the_same_name_are_two_cases() -> None:
    cases = tiny_suites.plan(SUITE)
    assert len({case.key for case in cases}) == len({case.digest for case in cases}) == len(cases) == 8
    assert len({strip_digest(case.key) for case in cases}) == len(cases)
    assert cases[0].key.startswith("trial/all/complexity-growing length/full:backend=dense/n32-b1-h1-kv1-d8/")
    assert cases[1].key.startswith("trial/all/complexity-layers-growing length/full:backend=dense/")


def test_case_digest_depends_on_claims_and_tolerance() -> None:
    (case, *_) = tiny_suites.plan(SUITE)
    for old, new in (("N^2 D", "N D"), ("A & B", "C"), ("octaves  = 2", "octaves  = 2\ntolerance = 0.3")):
        (other, *_) = tiny_suites.plan(SUITE.replace(old, new, 1))
        assert other.digest != case.digest


def test_command_line_names_can_select_layers() -> None:
    cases = tiny_suites.plan(SUITE, variants=["gru", "linear"])
    assert [(case.group.of_blocks, case.variant) for case in cases[:3]] == [
        *((False, "linear"), (True, "gru"), (True, "linear"))
    ]
    assert {case.variant for case in tiny_suites.plan(SUITE, variants=["lstmn"])} == {"lstmn"}
    with pytest.raises(UsageError, match="unknown mechanism 'gru'"):
        tiny_suites.plan(SUITE.replace("block    =", "#"), variants=["gru"])
    with pytest.raises(UsageError, match="unknown layer 'gruu'; did you mean 'gru'"):
        tiny_suites.plan(SUITE.replace("variant  =", "#"), variants=["gruu"])


def test_one_axis_can_be_selected_on_the_command_line() -> None:
    cases = tiny_suites.plan(SUITE, keys={"along": "width"})
    assert {case.keys.along for case in cases} == {("width",)}
    heads = tiny_suites.plan(SUITE, keys={"along": "heads"})
    assert {case.keys.sizes for case in heads} == {(1, 2, 4, 8)}


WRONG = {
    "no formula": ("N^2 D", "N^^2", r"'N\^\^2' is not a formula"),
    "unknown name": ("N^2 D", "N^2 E", "unknown name 'E'"),
    "nothing at a size": ('time = "N^2 D"', 'time = "log(N/8)"', r"claim of full: 'log\(N/8\)' is 0 for N = 8"),
    "a claim of nobody": ("dense =", "densee =", "unknown layer 'densee'; did you mean 'dense'"),
    "wrong key of a claim": ("memory =", "memry =", r"claims\.full: unknown key 'memry'; did you mean 'memory'"),
    "no time": ('time = "N D^2", ', "", r"claims\.gru\.time is missing"),
    "claims as text": ("octaves  = 2", 'claims = "N"', "claims: .* got 'N'"),
    "odd width": ("heads = [1]", "heads = [3]", "3 heads do not divide a width of 8"),
    "odd heads": (
        "length   = 8",
        'length   = 8\nalong = ["heads"]\nsizes = [1, 2, 3]',
        "3 heads do not divide a width of",
    ),
    "odd widths": (
        *("length   = 8\nwidth    = 8\n", 'length = 8\nwidth = 8\nalong = ["width"]\nsizes = [1, 2, 3]\n'),
        "complexity: 2 heads do not divide a width of 1",
    ),
    "few sizes": ("[16, 8, 32]", "[16, 32, 32]", "2 sizes along length; give more than octaves, 2"),
    "the same sizes": ("length   = 8", "length   = 8\nsizes = [8, 8, 8]", "1 sizes along length"),
    "no octave": ("octaves  = 2", "octaves  = 1", "octaves: .* got 1"),
    "no tolerance": ("octaves  = 2", "tolerance = 0", "tolerance: .* got 0"),
    "no axis": ("octaves  = 2", 'along = ["lenght"]', r"along\.0: unknown value 'lenght'; did you mean 'length'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_suites_are_refused_with_one_line(name: str) -> None:
    old, new, message = WRONG[name]
    text = SUITE.replace("heads = [1]", "heads = [2]") if name == "odd widths" else SUITE
    text = text.partition("[claims]")[0] if name == "claims as text" else text
    with pytest.raises(UsageError, match=message) as caught:
        tiny_suites.plan(text.replace(old, new, 1))
    assert "\n" not in str(caught.value)


# -- exponents and verdicts ------------------------------------------------------------------------------------------


def test_only_the_last_octaves_are_fitted() -> None:
    noise, sizes = random.Random(3), [2**i for i in range(10)]
    rounds = [[n**1.7 * noise.lognormvariate(0, 0.02) for n in sizes] for _ in range(6)]
    exponent = fit_exponent(sizes, rounds, 4)
    assert exponent.value == pytest.approx(1.7, abs=0.03)
    assert (exponent.low or 0) < 1.7 < (exponent.high or 0)
    flat = [[1.0] * 5 + values[5:] for values in rounds]  # 32 and up are the last four octaves
    assert fit_exponent(sizes, flat, 4) == exponent
    assert fit_exponent(sizes, flat, 5).value > 1.8  # with a step in it


def test_a_bend_widens_the_interval() -> None:
    sizes = [1, 2, 4, 8, 16]
    straight, bent = ([float(n) for n in sizes], [float(n + n**2) for n in sizes])
    (low, high), (wider_low, wider_high) = (fit_exponent(sizes, [values], 4)[1:] for values in (straight, bent))
    assert (high or 9) - (low or 0) < 1e-9
    assert (wider_high or 0) - (wider_low or 0) > 0.1


def test_two_sizes_use_the_exponent_of_each_round() -> None:
    rounds = [[1.0, 2.0], [1.0, 4.0], [3.0, 12.0]]
    exponent, half = fit_exponent([8, 16], rounds, 4), t_quantile(0.975, 2) * (1 / 3) ** 0.5 / 3**0.5
    assert exponent == pytest.approx((5 / 3, 5 / 3 - half, 5 / 3 + half))


@pytest.mark.parametrize(
    ("exponent", "verdict"),
    [
        (Estimate(2.0, 1.9, 2.1), "reproduced"),
        (Estimate(1.9, 1.8, 2.0), "reproduced"),  # the bounds are included
        (Estimate(1.9, 1.7, 2.1), "reproduced"),  # the claim is an upper bound
        (Estimate(1.0, -9.0, 2.2), "reproduced"),
        (Estimate(2.1, 1.9, 2.3), "inconclusive"),
        (Estimate(2.0, 1.0, 3.0), "inconclusive"),
        (Estimate(1.5, 1.3, 1.7), "reproduced: grows more slowly"),
        (Estimate(2.5, 2.3, 2.7), "contradicted: grows faster"),
        (Estimate(2.1), "reproduced"),  # exact
        (Estimate(2.3), "contradicted: grows faster"),
        (Estimate(1.7), "reproduced: grows more slowly"),
    ],
)
def test_verdict_compares_the_interval_with_the_tolerance(exponent: Estimate, verdict: str) -> None:
    assert compute_verdict(exponent, 2.0, 0.2000001) == verdict


# -- whole cases -----------------------------------------------------------------------------------------------------


def test_counted_operations_reproduce_the_claims(clock: FlopClock) -> None:
    records = measure_suite()
    assert {record.row.status for record in records.values()} == {"ok"}
    expected = {
        ("mechanism", "length", FULL): (2, "reproduced"),
        ("mechanism", "width", FULL): (1, "reproduced"),
        ("layer", "length", "gru"): (1, "reproduced"),
        ("layer", "width", "gru"): (2, "reproduced"),
        ("layer", "length", "dense"): (2, "reproduced"),
        ("layer", "width", "dense"): (2, "reproduced"),
    }
    for key, (exponent, verdict) in expected.items():
        extra = records[key].row.extra
        assert extra["time_exponent"] == pytest.approx(exponent, abs=1e-9), key
        assert extra["time_claimed"] == pytest.approx(exponent, abs=1e-9)
        assert extra["time_verdict"] == verdict
    layer = records["layer", "length", FULL].row.extra  # its projections are linear in N
    assert 1.2 < layer["time_exponent"] < 1.8
    assert layer["time_verdict"].startswith("reproduced")


def test_rows_describe_the_sweep(clock: FlopClock) -> None:
    records = measure_suite()
    gru, dense, full = (records["layer", "length", name] for name in ("gru", "dense", FULL))
    extra = gru.row.extra
    assert (extra["smallest"], extra["reached"], extra["stopped"]) == (8, 32, None)
    assert (extra["sequential"], extra["sequential_claimed"]) == (32, 32)
    assert (extra["weights"], extra["weights_claimed"], gru.row.parameters) == (384, 384, 384 + 48)
    assert (dense.row.extra["weights"], dense.row.extra["weights_claimed"]) == (64 * 64, 64 * 64)  # N = D = 8
    assert (dense.row.extra["sequential"], full.row.extra["sequential"]) == (1, 1)
    assert (full.row.extra["weights"], full.row.extra["source"]) == (256, "A & B")
    assert (gru.row.mode, gru.row.rounds, gru.row.seq_len, gru.row.head_dim) == ("forward", 2, 32, 8)
    assert gru.row.oracle_error is None
    assert full.row.oracle_error == 0  # it is its own reference implementation
    assert gru.samples["sizes"] == [8, 16, 32]
    assert [len(values) for values in gru.samples["rounds_ms"]] == [3, 3]
    assert gru.row.latency_ms == pytest.approx(gru.samples["rounds_ms"][0][-1], rel=1e-4)
    assert len(gru.samples["bytes"]) == 3
    assert gru.row.peak_memory_bytes == gru.samples["bytes"][-1]


def test_too_few_octaves_are_inconclusive(clock: FlopClock) -> None:
    text = SUITE.replace("[16, 8, 32]", "[8, 12, 16]").replace("block    =", "#")
    (record,) = measure(tiny_suites.plan(text, keys={"along": "length"})).values()
    assert record.row.extra["time_exponent"] == pytest.approx(2)
    assert record.row.extra["time_verdict"] == "inconclusive: less than 2 octaves"
    assert record.row.extra["memory_verdict"] == "inconclusive: less than 2 octaves"


def test_faster_growth_than_claimed_is_contradicted(clock: FlopClock) -> None:
    def cubic(out: Tensor) -> Tensor:
        square = torch.ones(out.shape[2], out.shape[2])
        return out + 0 * (square @ square @ square).sum()

    text = SUITE.replace('{ name = "full", backend = "dense" }]', '{ name = "zz_cubic" }]', 1).replace(
        "full  =", "zz_cubic =", 1
    )
    with tiny_suites.isolated_registry():
        tiny_suites.register_modified("zz_cubic", cubic)
        (record,) = measure(tiny_suites.plan(text.replace("block    =", "#"), keys={"along": "length"})).values()
    assert record.row.extra["time_verdict"] == "contradicted: grows faster"
    assert 2.2 < record.row.extra["time_low"] <= record.row.extra["time_high"] < 3.2


def test_a_mechanism_with_wrong_output_is_invalid(clock: FlopClock) -> None:
    with tiny_suites.isolated_registry():
        tiny_suites.register_modified("zz_wrong", lambda out: out * 1.01)
        for record in measure_cases(tiny_suites.plan(SUITE, variants=["zz_wrong"], keys={"along": "length"})[:1]):
            assert record.row.status == "invalid"
            assert "relative error 0.01 against its dense reference, more than 1e-04" in (record.row.reason or "")


def test_causal_claim_of_a_dense_implementation_is_contradicted(clock: FlopClock) -> None:
    text = SUITE.replace("octaves", 'along = ["causal"]\noctaves').replace('time = "N^2 D"', 'time = "N^2 D / C"')
    text = text.replace("block    =", "#")
    (record,) = measure(tiny_suites.plan(text)).values()
    assert record.row.extra["time_claimed"] == pytest.approx(-1)
    assert record.row.extra["time_exponent"] == 0  # the dense implementation computes all pairs
    assert record.row.extra["time_verdict"] == "contradicted: grows faster"
    assert "memory_exponent" not in record.row.extra
