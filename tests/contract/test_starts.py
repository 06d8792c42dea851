"""Left-padded batches (`starts`): mechanisms that do not support them refuse in one line.

The conformance test `row_starts` compares the rows of the others.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from specs import SPECS
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.decode_state import KVCache
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
def test_unsupported_starts_are_refused_in_one_line(spec: str) -> None:
    attn = make(spec)
    with pytest.raises(ea.UnsupportedError, match="does not support starts: ") as error:
        init_state(attn)
    assert attn.label in str(error.value)
    assert "\n" not in str(error.value)


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


def test_overridden_steps_and_states_refuse_starts() -> None:
    with pytest.raises(ea.UnsupportedError, match="OwnSteps does not support starts: OwnSteps has its own steps"):
        init_state(OwnSteps())
    with pytest.raises(ea.UnsupportedError, match="OwnState does not support starts: its dict has no field for them"):
        init_state(OwnState())


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
