"""Properties of mechanisms that checks depend on."""

from __future__ import annotations

import pytest
from toy_mechanisms import Slow, Stepwise, Toy

from efficient_attn.contract.mechanism import Attention
from efficient_attn.contract.shapes import Dims
from efficient_attn.testing import Subject
from efficient_attn.testing.probing import accepts_chunks, find_capacity, other_instances, refuses_shape, too_slow


def made(cls: type[Toy]) -> Subject:
    def create(dims: Dims, seed: int, backend: str | None) -> Attention:
        return cls()

    return Subject(create)


@pytest.mark.parametrize(
    ("spec", "positions"),
    [("sliding_window:window=10", 11), ("attention_sinks:window=10:n_sink=4", 15), ("global_tokens:n_global=5", 6)],
)
def test_capacity_of_a_bounded_state(spec: str, positions: int) -> None:
    assert find_capacity(Subject(spec)).positions == positions


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        (Subject("full"), "its state stores every position"),
        (Subject("linear"), "the capacity of its state is unknown: its bytes do not depend on max_len"),
        (made(Stepwise), "the capacity of its state is unknown: its bytes do not depend on max_len"),
    ],
    ids=["full", "linear", "Stepwise"],
)
def test_unknown_and_unlimited_capacities_have_a_reason(subject: Subject, why: str) -> None:
    assert find_capacity(subject) == (None, why)


def test_steps_of_single_positions_are_recognized() -> None:
    assert accepts_chunks(Subject("full"))
    assert not accepts_chunks(made(Stepwise))


def test_a_slow_reference_is_not_run() -> None:
    subject = made(Slow)
    assert too_slow(subject, subject.shape(10)) is None
    assert "its reference is slow, N=100000 over M=100000" in str(too_slow(subject, subject.shape(100_000)))


def test_other_instances_give_other_results() -> None:
    assert [other.label for other in other_instances(Subject("sliding_window:window=7"))] == ["sliding_window:window=3"]
    assert [other.label for other in other_instances(Subject("full"))] == ["full:softcap=3"]
    assert list(other_instances(Subject("dot"))) == []


def test_sizes_that_are_refused_are_reported() -> None:
    subject = Subject("gqa:kv_heads=2")
    assert refuses_shape(subject, subject.shape(4, heads=4)) is None
    assert "does not divide" in str(refuses_shape(subject, subject.shape(4, heads=3)))
