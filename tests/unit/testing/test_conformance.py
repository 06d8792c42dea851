"""The conformance tests: they follow the traits, detect false claims, and describe failures."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from toy_mechanisms import (
    PLAIN,
    Biased,
    CausalOnly,
    Counting,
    CountingFuture,
    Even,
    Forgetful,
    Halved,
    Humble,
    Learned,
    Miscounted,
    Noisy,
    Overflowing,
    Pooled,
    Sequential,
    Shrinking,
    Slow,
    Stepwise,
    Tied,
    Toy,
    make,
)

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import MASK_FIELDS, Attention
from efficient_attn.contract.shapes import Dims
from efficient_attn.contract.traits import Traits
from efficient_attn.testing import CHECKS, Check, Outcome, Subject, check, run_check, run_checks, sum_up
from efficient_attn.testing.tensor_comparison import assert_close, assert_finite, assert_same, expect_error


def factory(cls: type[Toy]):
    def created(dims: Dims, seed: int, backend: str | None) -> Attention:
        if issubclass(cls, Even):
            return cls(dims=dims)
        return cls(dims=dims, seed=seed) if issubclass(cls, Learned) else cls()

    return created


def outcome(name: str, cls: type[Toy]) -> Outcome:
    (found,) = run_checks(factory(cls), checks=[c for c in CHECKS if c.name == name])
    return found


def failures(cls: type[Toy], **how: object) -> dict[str, str]:
    return {o.check.name: o.reason for o in run_checks(factory(cls), **how) if o.status == "failed"}  # pyright: ignore


CORRECT = (Toy, Biased, Tied, Pooled, Humble, CausalOnly, Learned, Counting, Stepwise, Even, Noisy)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
@pytest.mark.parametrize(
    "cls", [pytest.param(cls, id=cls.__name__, marks=pytest.mark.sampled(20, cls.__name__)) for cls in CORRECT]
)
def test_correct_toys_pass(cls: type[Toy], check: Check) -> None:
    assert failures(cls, checks=[check]) == {}


@pytest.mark.sampled(4)
def test_what_is_not_claimed_is_reported() -> None:
    outcomes = {o.check.name: o for o in run_checks(factory(Humble))}
    assert outcomes["causality"].status == "not_claimed"
    assert outcomes["causality"].reason == "causal is not claimed"
    assert outcomes["gradcheck"].reason == "gradient is not claimed"
    assert outcomes["spec_round_trip"].reason == "it was created by a factory, not from a spec"
    assert outcomes["refusals"].status == "passed"


def test_trimming_is_checked_only_where_it_is_declared() -> None:
    (trimmed,) = (c for c in CHECKS if c.name == "padded_equals_trimmed")
    assert run_checks(factory(Counting), checks=[trimmed])[0].status == "passed"  # by its causal masks
    for claims in ({"strictly_causal": False}, {"causal": False}):
        (outcome,) = run_checks(factory(make(Counting, **claims)), checks=[trimmed])
        assert (outcome.status, outcome.reason) == (
            "not_claimed",
            "its result depends on the number of keys, padded ones included",
        )


@pytest.mark.slow
def test_packed_sequences_are_optional() -> None:
    class Older(Toy):
        known_mask_fields = MASK_FIELDS - {"cu_seqlens"}

    names = ("packed_equals_alone", "packed_misfits", "refusals")
    outcomes = {o.check.name: o for o in run_checks(factory(Older), checks=[c for c in CHECKS if c.name in names])}
    assert (outcomes["packed_equals_alone"].status, outcomes["refusals"].status) == ("not_claimed", "passed")
    assert outcomes["packed_misfits"].reason == "it does not support cu_seqlens"


FALSE_CLAIMS = {
    "key_order": make(Sequential, positional=False),
    "weights_sum_to_one": make(Halved, normalised=True),
    "convex": make(Halved, exact=True),
    "alignment": make(Pooled, mixes_queries=False),
    "causality": make(Pooled, causal=True, strictly_causal=True),
    "prefix_law": make(Pooled, causal=True, strictly_causal=True),
    "gradient_causality": make(Pooled, causal=True, strictly_causal=True),
    "decode_equals_forward": make(Toy, decode=True),
    "state_dict": Forgetful,
    "published_cost": Shrinking,
    "pair_counts": Miscounted,
    "large_inputs": Overflowing,
    "equals_oracle": make(Tied, cross=True),
    "padded_equals_trimmed": CountingFuture,
    "holes_equal_removed": make(Counting, padded_as_trimmed=True),
    "grouped_equals_expanded": make(Tied, grouped=True),
    "groups_are_not_expanded": make(Toy, grouped=True),
    "growth_is_measured": Shrinking,
    "determinism": make(Noisy, deterministic=True),
}


@pytest.mark.parametrize("name", FALSE_CLAIMS)
def test_false_claims_are_detected(name: str) -> None:
    chosen = [c for c in CHECKS if c.name == name]
    assert list(failures(FALSE_CLAIMS[name], checks=chosen)) == [name]


LEFT_OUT = {
    "decode_past_two_laps": (
        Stepwise,
        "the capacity of its state is unknown: its bytes do not depend on max_len: decoded to 300",
    ),
    "decode_equals_forward": (Stepwise, "its step accepts one position at a time: only single positions were tested"),
    "decode_far": (Stepwise, "its step accepts one position at a time: decoded to 301 positions"),
    "long_sequence": (make(Slow, cross=False), "its reference is slow"),
    "sizes_and_pairs": (Even, "D=13 is refused: Even: head_dim must be even, not 13"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_untested_cases_are_reported_in_one_line(name: str) -> None:
    cls, reason = LEFT_OUT[name]
    found = outcome(name, cls)
    assert found.status == "passed"
    assert reason in found.reason
    assert "\n" not in found.reason


@pytest.mark.sampled(6)
def test_a_failure_reports_property_smallest_input_and_opt_outs() -> None:
    class Ungrouped(Toy):
        claims = replace(PLAIN, grouped=True)

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
            start = None if k.shape[1] < q.shape[1] else mask.query_start
            return super().compute(q, k, v, replace(mask, query_start=start), **inputs)

    found = outcome("sizes_and_pairs", Ungrouped)
    assert "smallest failing input: B=1 H=2 Hkv=1 N=1 M=65 D=64 E=64 float64, causal, query_start=0" in found.reason
    assert "drawn by seed 0" in found.reason
    assert found.advice.startswith("property: Values and gradients equal the reference at every size")
    assert "declare `grouped=False` or `cross=False` or `causal=False`" in found.advice


@pytest.mark.parametrize("method", ["compute", "forward"])
def test_a_missing_return_is_reported_in_one_line(method: str) -> None:
    cls = type("Nothing", (Toy,), {method: lambda *tensors, **inputs: None})
    assert "returned None instead of an output; is a return missing? (q [" in outcome("output", cls).reason


def test_the_summary_lists_undeclared_traits() -> None:
    subject = Subject(factory(Humble))
    summary = sum_up(run_checks(subject, checks=CHECKS[:3]), subject.traits)
    assert "limits: no causal masks, no strict causality, uses the keys as queries, no padding" in summary
    everything = Traits()
    assert "limits" not in sum_up([], everything)


def test_one_dtype_can_be_requested() -> None:
    assert failures(Toy, dtype="float32", checks=[c for c in CHECKS if c.name in ("equals_oracle", "output")]) == {}
    (outcome,) = run_checks("full", dtype="float32", checks=[c for c in CHECKS if c.name == "gradcheck"])
    assert outcome.reason == "finite differences need float64"


def test_a_missing_device_is_an_error() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ea.UnsupportedError, match="no CUDA device on this machine; leave --device out"):
            run_checks("full", device="cuda")


def test_a_check_that_breaks_is_a_failure_with_its_error() -> None:
    @check()
    def broken(subject: Subject) -> None:
        """It raises."""
        raise KeyError("no such thing")

    outcome = run_check(broken, Subject("full"))
    assert outcome.status == "failed"
    assert re.fullmatch(r"KeyError: 'no such thing' \(test_conformance.py, line \d+\)", outcome.reason)
    assert broken.meaning == "It raises."


def test_checks_have_unique_names_and_meanings() -> None:
    names = [c.name for c in CHECKS]
    assert len(names) == len(set(names))
    assert all(c.meaning.endswith(".") for c in CHECKS)
    known = set(Traits.__dataclass_fields__)
    assert all({*c.needs, *c.unless} <= known for c in CHECKS)


def test_creation_errors_reach_the_caller() -> None:
    with pytest.raises(ea.UsageError, match="did you mean 'full'"):
        run_checks("fulll")
    with pytest.raises(ea.UnsupportedError, match="has no backend"):
        run_checks("full", backend="magic")
    with pytest.raises(ea.UsageError, match=r"needs dims\.heads"):
        run_checks(lambda dims, seed, backend: Learned())


def test_one_backend_can_be_requested() -> None:
    subject = Subject("sliding_window:window=3", backend="blocks")
    assert subject.attn.backend == subject.make(subject.shape(4)).backend == "blocks"
    assert subject.fast_backends == ("blocks",)
    assert Subject("sliding_window").fast_backends == ("adaptive", "parts", "blocks", "masked", "cpp")
    assert Subject("full", backend="dense").fast_backends == ()
    assert Subject("full:backend=dense").attn.backend == "dense"


def test_draws_are_seeded_and_truly_float64() -> None:
    subject = Subject("full")
    shape = subject.shape(20)
    one, two, other = subject.draw(shape), subject.draw(shape), subject.draw(shape, seed=1)
    assert torch.equal(one["q"], two["q"])
    assert not torch.equal(one["q"], other["q"])
    assert not torch.equal(one["q"], one["q"].float().double())


def test_heads_follow_the_requirements_of_the_mechanism() -> None:
    assert Subject("gqa:kv_heads=3").shape(4).heads == 6
    assert Subject("mqa").shape(4).kv_heads == 1


class TestCall:
    def test_changes_leave_the_original(self) -> None:
        call = Subject("full").draw(Subject("full").shape(5))
        short = call.keys(slice(3)).queries(slice(2))
        assert (short["q"].shape[2], short["k"].shape[2], short["v"].shape[2]) == (2, 3, 3)
        assert call["k"].shape[2] == 5

    def test_one_tensor_stays_one(self) -> None:
        subject = Subject(factory(Tied))
        call = subject.draw(subject.shape(5))
        for changed in (call.keys(slice(3)), call.queries(slice(3)), call.leaves(), call.with_(k=call["k"] + 1)):
            assert changed["q"] is changed["k"]

    def test_gradients_are_summed_over_chosen_rows(self) -> None:
        subject = Subject("full")
        shape = subject.shape(5)
        call = subject.draw(shape, mask=Mask(causal=True))
        _, grads = call.gradients(subject.make(shape), slice(0, 1))
        assert set(grads) == {"q", "k", "v"}
        assert grads["v"][:, :, 0].abs().min() > 0
        assert grads["v"][:, :, 1:].abs().max() == 0


class TestCompare:
    def test_assert_close_reports_label_position_and_difference(self) -> None:
        got, want = torch.zeros(2, 3), torch.zeros(2, 3)
        got[1, 2] = 0.5
        with pytest.raises(AssertionError, match=r"rows: off by .*at \[1, 2\] got 0.5, expected 0"):
            assert_close(got, want, "rows")
        assert_close(got * 1e-12, want, "rows", summed=1.0)

    def test_close_is_relative_to_the_largest_value(self) -> None:
        assert_close(torch.tensor([1e6 + 1e-5], dtype=torch.float64), torch.tensor([1e6], dtype=torch.float64), "x")

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_non_finite_values_are_never_close(self, bad: float) -> None:
        with pytest.raises(AssertionError, match=r"not finite, at \[0\]"):
            assert_close(torch.tensor([bad]), torch.tensor([0.0]), "x")
        with pytest.raises(AssertionError, match="not finite"):
            assert_finite(torch.tensor([bad]), "x")

    def test_same_is_to_the_last_bit(self) -> None:
        one = torch.ones(3, dtype=torch.float64)
        with pytest.raises(AssertionError, match="1 of 3 entries differ"):
            assert_same(torch.tensor([1, 1 + 2**-52, 1], dtype=torch.float64), one, "x")
        with pytest.raises(AssertionError, match="shape"):
            assert_same(one[:2], one, "x")

    def test_expect_error(self) -> None:
        with expect_error(ea.UsageError, "it"):
            raise ea.UsageError("no")
        with pytest.raises(AssertionError, match="it: accepted"), expect_error(ea.UsageError, "it"):
            pass
        with (
            pytest.raises(AssertionError, match="raised KeyError, expected UsageError"),
            expect_error(ea.UsageError, "it"),
        ):
            raise KeyError
        with pytest.raises(AssertionError, match="without a message"), expect_error(ea.UsageError, "it"):
            raise ea.UsageError


@pytest.mark.sampled(6)
@pytest.mark.slow
def test_no_test_framework_is_needed() -> None:
    import subprocess
    import sys

    code = "import sys, efficient_attn.testing; sys.exit(bool({'pytest', 'hypothesis', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert isinstance(CHECKS[0], Check)
