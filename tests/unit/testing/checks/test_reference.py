"""The conformance test of references at single query positions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks.reference import single_reference_rows


class FromZero(ea.SoftmaxAttention):
    """Exact attention whose reference places single queries at the first positions."""

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        start = 0 if mask.query_positions is not None else mask.start(q.shape[2], k.shape[2])
        moved = Mask(mask.causal, mask.key_lengths, key_mask=mask.key_mask, query_start=start)
        return super().oracle(q, k, v, moved, **inputs)


class Consecutive(ea.SoftmaxAttention):
    """Exact attention whose reference needs consecutive queries."""

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        mask.start(q.shape[2], k.shape[2])
        return super().oracle(q, k, v, mask, **inputs)


@pytest.mark.parametrize(
    ("cls", "status"), [(FromZero, "failed"), (Consecutive, "passed"), (ea.SoftmaxAttention, "passed")]
)
def test_rows_of_references_are_compared(cls: type[ea.SoftmaxAttention], status: str) -> None:
    outcome = run_check(single_reference_rows, Subject(lambda *_: cls()))
    assert outcome.status == status, outcome.reason
    if status == "failed":
        assert "rows [0, 5, 6, 77, 149] of 150 of the reference" in outcome.reason


@pytest.mark.parametrize("spec", ["full", "linear", "sliding_window:window=8"])
def test_fast_backends_refuse_query_positions(spec: str) -> None:
    q = torch.randn(1, 2, 3, 8)
    mask = Mask(query_positions=torch.tensor([0, 4, 5]))
    k = torch.randn(1, 2, 9, 8)
    with pytest.raises(ea.UnsupportedError, match="the mask field query_positions needs backend='dense'"):
        ea.create(spec)(q, k, k, mask)
    assert ea.create(spec, backend="dense")(q, k, k, mask).shape == (1, 2, 3, 8)
