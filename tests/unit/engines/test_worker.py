"""Limits of memory, on the processor and on a simulated GPU. Those of workers are tested with the engine."""

from __future__ import annotations

import pytest
import torch
from simulated_cuda import TOTAL_BYTES, simulated_cuda

from efficient_attn.engines import worker
from efficient_attn.engines.worker import limit_memory


@pytest.mark.parametrize(
    ("allowed", "shares"),
    [(TOTAL_BYTES // 4, [0.25]), (2 * TOTAL_BYTES, [1.0]), (None, [])],
    ids=["part", "more", "none"],
)
def test_a_limit_on_a_gpu_is_a_share_of_its_memory(
    allowed: int | None, shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> int:
        raise AssertionError("the processor's memory is not limited, which would stop CUDA's start")

    set_shares: list[float] = []
    monkeypatch.setattr(worker, "read_status", refuse)
    with simulated_cuda() as patch:
        patch.setattr(torch.cuda, "set_per_process_memory_fraction", set_shares.append)
        limit_memory(allowed, "cuda")
    assert set_shares == shares
