"""The conformance kit: it follows the traits, sees false claims, and tells failures in words."""

from __future__ import annotations

import pytest
import torch
from toys import (
    Biased,
    CausalOnly,
    Counting,
    CountingFuture,
    Forgetful,
    Halved,
    Humble,
    Learned,
    Miscounted,
    Overflowing,
    Pooled,
    Sequential,
    Shrinking,
    Tied,
    Toy,
    make,
)

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import MASK_FIELDS, Attention
from efficient_attn.contract.shapes import Dims
from efficient_attn.contract.traits import Traits
from efficient_attn.testing import CHECKS, Check, Subject, check, run_check, run_checks
from efficient_attn.testing.compare import assert_close, assert_finite, assert_same, refuses


def factory(cls: type[Toy]):
    def created(dims: Dims, seed: int, backend: str | None) -> Attention:
        return cls(dims=dims, seed=seed) if issubclass(cls, Learned) else cls()

    return created


def failures(cls: type[Toy], **how: object) -> dict[str, str]:
    return {o.check.name: o.reason for o in run_checks(factory(cls), **how) if o.status == "failed"}  # pyright: ignore


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    "cls", [Toy, Biased, Tied, Pooled, Humble, CausalOnly, Learned, Counting], ids=lambda c: c.__name__
)
def test_honest_toys_pass(cls: type[Toy]) -> None:
    assert failures(cls) == {}


def test_what_is_not_claimed_is_told() -> None:
    outcomes = {o.check.name: o for o in run_checks(factory(Humble))}
    assert outcomes["causality"].status == "not_claimed"
    assert outcomes["causality"].reason == "it does not claim causal"
    assert outcomes["gradcheck"].reason == "it does not claim gradient"
    assert outcomes["spec_round_trip"].reason == "it was made by a factory, not from a spec"
    assert outcomes["refusals"].status == "passed"


def test_masks_without_a_promise_of_trimming_are_left_out() -> None:
    (trimmed,) = (c for c in CHECKS if c.name == "padded_equals_trimmed")
    assert run_checks(factory(Counting), checks=[trimmed])[0].status == "passed"  # by its causal masks
    for claims in ({"strictly_causal": False}, {"causal": False}):
        (outcome,) = run_checks(factory(make(Counting, **claims)), checks=[trimmed])
        assert (outcome.status, outcome.reason) == (
            "not_claimed",
            "the number of keys, padded ones included, matters to it",
        )


@pytest.mark.slow
def test_a_mechanism_may_not_know_packed_sequences() -> None:
    class Older(Toy):
        known_mask_fields = MASK_FIELDS - {"cu_seqlens"}

    outcomes = {o.check.name: o for o in run_checks(factory(Older))}
    assert (outcomes["packed_equals_alone"].status, outcomes["refusals"].status) == ("not_claimed", "passed")
    assert outcomes["packed_misfits"].reason == "it does not know cu_seqlens"


LIES = {
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
}


@pytest.mark.parametrize("name", LIES)
def test_false_claims_are_seen(name: str) -> None:
    chosen = [c for c in CHECKS if c.name == name]
    assert list(failures(LIES[name], checks=chosen)) == [name]


def test_a_check_that_breaks_is_a_failure_with_its_error() -> None:
    @check()
    def broken(subject: Subject) -> None:
        """It raises."""
        raise KeyError("no such thing")

    outcome = run_check(broken, Subject("full"))
    assert (outcome.status, outcome.reason) == ("failed", "KeyError: 'no such thing'")
    assert broken.meaning == "It raises."


def test_checks_are_named_once_and_say_what_they_mean() -> None:
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


def test_a_backend_can_be_asked_for() -> None:
    subject = Subject("sliding_window:window=3", backend="blocks")
    assert subject.attn.backend == subject.make(subject.shape(4)).backend == "blocks"
    assert subject.fast_backends == ("blocks",)
    assert Subject("sliding_window").fast_backends == ("parts", "blocks")
    assert Subject("full", backend="dense").fast_backends == ()
    assert Subject("full:backend=dense").attn.backend == "dense"


def test_draws_are_seeded_and_truly_float64() -> None:
    subject = Subject("full")
    shape = subject.shape(20)
    one, two, other = subject.draw(shape), subject.draw(shape), subject.draw(shape, seed=1)
    assert torch.equal(one["q"], two["q"])
    assert not torch.equal(one["q"], other["q"])
    assert not torch.equal(one["q"], one["q"].float().double())


def test_heads_follow_what_the_mechanism_insists_on() -> None:
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
    def test_close_says_what_where_and_how_far(self) -> None:
        got, want = torch.zeros(2, 3), torch.zeros(2, 3)
        got[1, 2] = 0.5
        with pytest.raises(AssertionError, match=r"rows: off by 0.5 .*at \[1, 2\] got 0.5, expected 0"):
            assert_close(got, want, "rows")
        assert_close(got * 1e-12, want, "rows")

    def test_close_is_relative_to_the_largest_value(self) -> None:
        assert_close(torch.tensor([1e6 + 1e-5], dtype=torch.float64), torch.tensor([1e6], dtype=torch.float64), "x")

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_nothing_that_is_not_finite_is_close(self, bad: float) -> None:
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

    def test_refuses(self) -> None:
        with refuses(ea.UsageError, "it"):
            raise ea.UsageError("no")
        with pytest.raises(AssertionError, match="it: accepted"), refuses(ea.UsageError, "it"):
            pass
        with pytest.raises(AssertionError, match="raised KeyError, expected UsageError"), refuses(ea.UsageError, "it"):
            raise KeyError
        with pytest.raises(AssertionError, match="without a message"), refuses(ea.UsageError, "it"):
            raise ea.UsageError


@pytest.mark.slow
def test_kit_needs_no_test_framework() -> None:
    import subprocess
    import sys

    code = "import sys, efficient_attn.testing; sys.exit(bool({'pytest', 'hypothesis', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert isinstance(CHECKS[0], Check)
