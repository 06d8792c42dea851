"""Heads exchanged for positions between processes."""

from dataclasses import replace

import pytest
import torch
from rank_cases import RankCase, find_differences, run_on_rank
from rank_processes import RankProcesses

import efficient_attn as ea
from efficient_attn.distributed import ContextParallel

FULL = RankCase("heads", "full", 4, heads=8, kv_heads=4)
CASES = [
    *(replace(FULL, causal=causal, padding=p) for causal in (True, False) for p in ("", "left", "both", "lengths")),
    *(
        replace(FULL, world=2, spec=spec, kv_heads=2, padding="right")
        for spec in ("longformer:window=4", "relu_linear")
    ),
    *(replace(FULL, world=2, kv_heads=2, head_dim=d, strided=True) for d in (32, 128)),
    replace(FULL, world=1, padding="both"),
    replace(FULL, causal=False, cross=40, value_dim=8),
    replace(FULL, spec="sliding_window:window=5", padding="first"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_exchanged_heads_equal_one_process(rank_processes: RankProcesses, case: RankCase) -> None:
    differences = find_differences(case, rank_processes.run(run_on_rank, case, world=case.world))
    assert max(differences.values()) < 2e-6, differences


@pytest.mark.slow
@pytest.mark.parametrize(("kv_heads", "name"), [(2, "2 key-value heads"), (6, "6 heads")])
def test_numbers_of_heads_that_ranks_do_not_divide(rank_processes: RankProcesses, kv_heads: int, name: str) -> None:
    case = replace(FULL, heads=kv_heads * (4 if kv_heads == 2 else 1), kv_heads=kv_heads)
    message = f"UsageError: context_parallel='heads': 4 ranks do not divide {name}; use context_parallel='ring'"
    for text in rank_processes.run(run_on_rank, case, world=4):
        assert text.startswith(message)


def list_supported() -> list[str]:
    """The mechanisms that the scheme supports; ranks never divide the one key-value head of mqa and mla."""
    supported = []
    for name in set(ea.names()) - {"mqa", "mla"}:
        attn = ea.create(name, dims=ea.Dims(heads=4, kv_heads=4, head_dim=16, max_len=64))
        try:
            ContextParallel("heads").check(attn)
        except ea.UnsupportedError:
            continue
        supported.append(name)
    return sorted(supported)


def test_what_the_scheme_supports() -> None:
    supported = list_supported()
    assert {"full", "sliding_window", "bigbird", "linear", "performer", "block_topk"} <= set(supported)
    assert not {"retention", "lightning", "gla", "dsa", "cosine", "reformer"} & set(supported)


@pytest.mark.parametrize("name", list_supported())
def test_heads_of_supported_mechanisms_are_alike(name: str) -> None:
    dims = ea.Dims(heads=4, kv_heads=4, head_dim=16, max_len=64)
    attn, half = ea.create(name, dims=dims), ea.create(name, dims=replace(dims, heads=2, kv_heads=2))
    sample = attn.sample(ea.Shape(1, 4, 4, 64, 64, 16, 16), generator=torch.Generator().manual_seed(0))
    mask = ea.Mask(attn.traits.causal)
    whole = attn(sample.q, sample.k, sample.v, mask)
    assert sample.v is not None
    part = half(sample.q[:, 2:], sample.k[:, 2:], sample.v[:, 2:], mask)
    torch.testing.assert_close(part, whole[:, 2:])
