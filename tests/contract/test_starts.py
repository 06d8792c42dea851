"""Left-padded batches (`starts`): mechanisms whose steps do not support them have a state for each start.

The conformance test `row_starts` compares the rows of all.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from specs import SPECS
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.decode_state import KVCache
from efficient_attn.contract.left_padding import StatesByStart
from efficient_attn.contract.row_starts import explain_no_starts
from efficient_attn.contract.shapes import Dims
from efficient_attn.testing import Subject
from efficient_attn.variants.full.full import Full

subject = cache(Subject)
DECODING = [spec for spec in SPECS if subject(spec).traits.decode]
N, STARTS = 60, (0, 1, 7, 39, 44)


def make(spec: str, *, kv_heads: int = 2) -> ea.Attention:
    kv_heads = subject(spec).attn.kv_heads or kv_heads
    dims = Dims(heads=4, kv_heads=kv_heads, head_dim=8, value_dim=8, max_len=N)
    return ea.create(spec, dims=dims).double()


def init_state(attn: ea.Attention, starts: Any = STARTS) -> Any:
    return attn.init_state(len(starts), N, torch.float64, starts=torch.tensor(starts))


def supports_starts(spec: str) -> bool:
    attn = make(spec)
    return explain_no_starts(attn, attn.init_state(1, N, torch.float64)) is None


@pytest.mark.parametrize("spec", [spec for spec in DECODING if not supports_starts(spec)])
def test_other_mechanisms_have_a_state_for_each_start(spec: str) -> None:
    state = init_state(make(spec), (3, 0, 3, 59))
    assert isinstance(state, StatesByStart)
    assert (state.firsts, state.rows) == ((3, 0, 59), ((0, 2), (1,), (3,)))


def test_mechanisms_that_support_starts() -> None:
    """A mechanism that loses its support by mistake is noticed."""
    supported = {spec for spec in ea.names() if spec in DECODING and supports_starts(spec)}
    assert supported >= {"full", "gqa", "mqa", "mla", "dot", "general", "cosine", "additive"}
    assert supported >= {"sliding_window", "dilated_window", "strided", "linear", "retention", "performer", "cosformer"}
    assert not supported & {"attention_sinks", "global_tokens", "fixed", "random_blocks", "longformer", "bigbird"}


class OwnSteps(Full):
    """A plug-in with its own `advance`, written before there were starts."""

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: KVCache, **inputs: Tensor) -> tuple[Tensor, KVCache]:
        state = state.append(k, v)
        return self.run(q, *state.filled(), ea.Mask(causal=True)), state


class OwnState(Full):
    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> Any:
        return {"keys": torch.zeros(batch, max_len, dtype=dtype, device=device)}


def test_overridden_steps_and_states_have_a_state_for_each_start() -> None:
    attn = OwnSteps().double()
    state, (q, k, v) = init_state(attn, (0, 3, 3)), (torch.randn(3, 2, 8, 4, dtype=torch.float64) for _ in range(3))
    assert isinstance(state, StatesByStart)
    out, state = attn.step(q, k, v, state)
    want = attn(q, k, v, ea.Mask(causal=True, key_mask=torch.arange(8) >= torch.tensor([0, 3, 3])[:, None]))
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)
    state = init_state(OwnState())
    assert isinstance(state, StatesByStart)
    assert [part["keys"].shape for part in state.states] == [(1, N - start) for start in STARTS]


def test_peers_without_padding_refuse_starts() -> None:
    class Unpadded(Full):
        @property
        def traits(self) -> ea.Traits:
            return replace(super().traits, padding=False)

    with pytest.raises(ea.UnsupportedError, match="Unpadded does not support starts: it does not support padding"):
        init_state(Unpadded())


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        (torch.tensor([0, 1]), "1 whole numbers in a tensor"),
        (torch.tensor([0.0]), "whole numbers"),
        ([0], "whole numbers"),
        (torch.tensor([8]), r"starts must be in \[0, 8\), got 8"),
        (torch.tensor([-1]), "got -1"),
    ],
)
def test_invalid_starts_are_reported(starts: Any, message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        ea.create("full").init_state(1, 8, starts=starts)
