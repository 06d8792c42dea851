"""Growth is measured unless calls are compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from toy_mechanisms import Shrinking, Toy

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.shapes import Shape
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks import growth_claims


def test_compiled_calls_are_not_counted() -> None:
    """A first call under a dispatch mode would disable compilation for the rest of the process."""

    class Compiling(Shrinking):
        @property
        def compiles(self) -> bool:
            return True

        def compute(self, *args: object, **inputs: object) -> object:  # type: ignore[override]
            raise AssertionError("it was called")

    counted, compiled = (
        run_check(growth_claims.growth_is_measured, Subject(lambda *_, c=c: c())) for c in (Shrinking, Compiling)
    )
    assert counted.status == "failed"
    assert compiled.status == "not_claimed"
    assert "compiled" in compiled.reason


def test_an_understated_cost_is_detected_below_a_large_constant_part() -> None:
    """With 100 landmarks the pseudo-inverse hides the growth with length, which alone would not contradict the cost."""
    subject = Subject("nystromformer:n_landmarks=100")
    growth = subject.attn.growth

    class Understated(type(subject.attn)):
        @property
        def growth(self) -> ea.Growth:
            return replace(growth, cost=lambda n, m, causal: growth.cost(n, m, causal) / 1000)

    def make(dims: ea.Dims, seed: int, backend: str | None) -> ea.Attention:
        attn = ea.create("nystromformer:n_landmarks=100", dims=dims, seed=seed, backend=backend)
        attn.__class__ = Understated
        return attn

    outcome = run_check(growth_claims.growth_is_measured, Subject(make))
    assert outcome.status == "failed"
    assert "times the work of growth.cost" in outcome.reason
    assert run_check(growth_claims.growth_is_measured, subject).status != "failed"


def find_failures(growth: object) -> dict[str, tuple[str, ...]]:
    """The failed checks of exact attention with a growth, and their lines."""
    toy = type("Toy", (Toy,), {"growth": growth})
    checks = growth_claims.published_cost, growth_claims.growth_is_measured
    outcomes = [run_check(check, Subject(lambda *_: toy())) for check in checks]
    return {o.check.name: o.lines for o in outcomes if o.status == "failed"}


WRONG = {
    "none": (ea.Attention.growth, ["published_cost"]),
    "a method": (lambda self: Toy().growth, ["published_cost", "growth_is_measured"]),
    "an empty formula": (ea.Growth("", "O(N)", lambda n, m, causal: n * m), ["published_cost"]),
    "too slow a growth": (ea.Growth("O(N)", "O(N)", lambda n, m, causal: n), ["growth_is_measured"]),
    "another formula": (ea.Growth("O(N)", "O(N)", lambda n, m, causal: n * m), ["growth_is_measured"]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_growth_gets_the_lines_of_a_right_one(name: str) -> None:
    growth, names = WRONG[name]
    failures = find_failures(growth)
    assert list(failures) == names
    lines = failures[names[0]]
    assert lines[:3] == ("growth = ea.Growth(", '    time="O(N^2)",', '    memory="O(N)",')
    assert find_failures(eval("".join(lines).partition(" = ")[2], {"ea": ea})) == {}


class StoresCopies(ea.SoftmaxAttention):
    """Exact attention whose backward pass keeps 150 copies of its output, as features may be; memory is still O(N)."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        out = super().compute(q, k, v, mask, **inputs)
        copies = out.unsqueeze(-1).expand(*out.shape, 150).exp()  # a result of exp is stored
        return out + 0 * copies.sum(-1)


class EstimatesCopies(StoresCopies):
    """The same, with an estimate."""

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        return 300 * shape.batch * shape.heads * shape.n * shape.value_dim * itemsize


@pytest.mark.parametrize(("cls", "status"), [(StoresCopies, "failed"), (EstimatesCopies, "passed"), (Toy, "passed")])
def test_an_inherited_estimate_of_memory_is_verified(cls: type[ea.Attention], status: str) -> None:
    """`Toy` stores all weights, as its growth says: the default estimate counts them."""
    outcome = run_check(growth_claims.training_memory, Subject(lambda *_: cls()))
    assert outcome.status == status, outcome.reason
    if status == "failed":
        assert "write a workspace_bytes of its own, the inherited one is wrong" in outcome.reason


def test_rows_written_into_a_buffer_count_alone() -> None:
    """A step that adds to one row of a state works on this row, however many there are."""
    buffer, row, index = torch.zeros(1000, 8), torch.ones(1, 8), torch.tensor([3])
    for write in (buffer.index_add_, buffer.index_copy_):
        with growth_claims.WorkCounter(computed_only=True) as counter:
            write(0, index, row)
        assert counter.work == 8


def test_tensors_without_data_are_no_work() -> None:
    """A library's unused N x N output, on the meta device, costs nothing."""
    x = torch.zeros(64, 64)
    with growth_claims.WorkCounter() as counter:
        on_meta = torch.zeros(64, 64, device="meta") @ torch.zeros(64, 64, device="meta")
    assert (counter.work, counter.largest, counter.peak, on_meta.shape) == (0, 0, 0, (64, 64))
    with growth_claims.WorkCounter() as counter:
        x @ x
    assert counter.work >= 64**3
