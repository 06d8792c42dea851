"""Decode states that are kept in other places than the state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_suites
import torch
from inline_measurement import measure_cases, measure_variants
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.measuring.held_state import HeldState, measure_held_state
from efficient_attn.bench.measuring.workload import Workload

GLOBAL: dict[str, Any] = {}


class HiddenState(ea.SoftmaxAttention):
    """Exact attention whose cache is not in its state."""

    def store(self) -> dict[str, Any]:
        raise NotImplementedError

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        self.store()["cache"] = super().new_state(batch, max_len, dtype, device)
        return (0,)

    def absorb(self, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
        self.store()["cache"] = super().absorb(k, v, self.store()["cache"], **inputs)
        return state

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
        out, self.store()["cache"] = super().advance(q, k, v, self.store()["cache"], **inputs)
        return out, state


class InAttribute(HiddenState):
    """Keeps it in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: dict[str, Any] = {}

    def store(self) -> dict[str, Any]:
        return self.hidden


class InClosure(HiddenState):
    """Keeps it in a closure."""

    def __init__(self) -> None:
        super().__init__()
        hidden: dict[str, Any] = {}
        self.find = lambda: hidden

    def store(self) -> dict[str, Any]:
        return self.find()


class InGlobal(HiddenState):
    """Keeps it in a global."""

    def store(self) -> dict[str, Any]:
        return GLOBAL


class InGlobalWithState(InGlobal):
    """Has a state of one number, which does not grow."""

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        super().new_state(batch, max_len, dtype, device)
        return torch.zeros(1, dtype=dtype, device=device)


class InNumpy(ea.SoftmaxAttention):
    """Keeps numpy arrays in a global, one for each call."""

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        GLOBAL["arrays"] = []
        return (0,)

    def absorb(self, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
        GLOBAL["arrays"].append((k.numpy().copy(), v.numpy().copy()))
        return state

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> Any:
        self.absorb(k, v, state)
        keys, values = (torch.from_numpy(np.concatenate(x, axis=2)) for x in zip(*GLOBAL["arrays"], strict=True))
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values), state


class Preallocated(InAttribute):
    """Keeps it in a buffer that its constructor allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2 * 2 * 300 * 2 * 8))

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        state = super().new_state(batch, max_len, dtype, device)
        sizes, heads = (2, batch, 2, max_len, 8), 2 * batch * 2 * max_len * 8
        keys, values = self.get_buffer("keys").data[:heads].view(sizes)
        object.__setattr__(self.hidden["cache"], "keys", keys)
        object.__setattr__(self.hidden["cache"], "values", values)
        return state


DIMS = ea.Dims(heads=2, head_dim=8, max_len=96)
DECODING = [name for name in ea.names() if ea.create(name, dims=DIMS).traits.decode]
HIDDEN: tuple[type[ea.Attention], ...] = (InAttribute, InClosure, InGlobal, InGlobalWithState, InNumpy)


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        for cls in (*HIDDEN, Preallocated):
            ea.register(f"zz_{cls.__name__.lower()}", family="full")(cls)
        yield
    GLOBAL.clear()


@pytest.mark.parametrize("cls", HIDDEN)
@pytest.mark.parametrize(("n", "batch"), [(16, 1), (250, 2)])
def test_a_hidden_state_is_counted_and_reported(cls: type[ea.Attention], n: int, batch: int) -> None:
    full, hidden = measure_variants("full", f"zz_{cls.__name__.lower()}", mode="decode", seq_len=n, batch=batch)
    size = 2 * batch * 2 * n * 8 * 4
    assert (full.row.state_bytes, full.row.reason) == (size, None)
    assert hidden.row.status == "ok"
    assert hidden.row.state_bytes == pytest.approx(size, rel=0.02, abs=256)
    assert hidden.row.bytes_moved == pytest.approx(size, rel=0.02, abs=256)
    assert "of decode state are outside of the state" in (hidden.row.reason or "")


def test_a_buffer_that_a_step_fills_is_counted() -> None:
    row = measure_variants("zz_preallocated", mode="decode", seq_len=250)[0].row
    assert row.state_bytes == 2 * 2 * 300 * 2 * 8 * 4  # the whole buffer
    assert "outside of the state" in (row.reason or "")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", DECODING)
def test_built_in_states_have_their_public_size(variant: str, dtype: str) -> None:
    workload = Workload(tiny_suites.case(variant, "decode", seq_len=64, dtype=dtype))
    size = ea.state_bytes(Workload(workload.case).after_context(64))
    assert workload.held_state == HeldState(size)
    assert workload.held_state.reason is None


def test_parameters_that_no_step_changes_do_not_count() -> None:
    workload = Workload(tiny_suites.case("full", "decode", seq_len=64))
    workload.attn.weight = torch.nn.Parameter(torch.ones(2**16))
    assert workload.held_state.outside == 0


def test_little_memory_outside_of_a_state_has_no_reason() -> None:
    assert HeldState(100_000, 19_000).reason is None
    assert HeldState(1000, 1000).reason is None
    assert HeldState(2**20, 2**19).reason == (
        "512 KiB of its 1.00 MiB of decode state are outside of the state: in the mechanism or in globals"
    )


def test_an_object_that_holds_tensors_is_a_state() -> None:
    class State:
        def __init__(self) -> None:
            self.keys = torch.ones(1000)

    held = measure_held_state(ea.create("full"), State, device="cpu")
    assert held == HeldState(4000)


def test_a_device_without_a_counter_counts_what_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    attn, make = ea.create("full"), lambda: [torch.ones(1000)]
    assert measure_held_state(attn, make, device="mps") == HeldState(4000)


def test_a_hidden_state_has_no_longest_context() -> None:
    text = tiny_suites.TINY.replace('"forward"', '"decode"')
    cases = tiny_suites.plan(text, variants=["full", "zz_inglobalwithstate"], keys={"memory_budget": 10**6})
    full, hidden = (record.row for record in measure_cases(cases))
    assert full.longest_context == 10**6 // (2 * 2 * 8 * 4)
    assert (hidden.memory_budget_bytes, hidden.longest_context) == (None, None)
