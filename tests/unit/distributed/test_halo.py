"""Windows whose keys are on several processes."""

import pytest
import torch
from rank_cases import RankCase, find_differences, run_on_rank
from rank_processes import RankProcesses

import efficient_attn as ea
from efficient_attn.distributed.collectives import Ranks
from efficient_attn.distributed.halo import Halo, find_halo, list_receives, list_sends

WINDOWS = [f"sliding_window:window={window}" for window in (1, 5, 6, 9, 40)]  # a rank has 6 or 12 positions
CASES = [
    *(RankCase("halo", spec, w, causal) for spec in WINDOWS for w in (2, 4) for causal in (True, False)),
    *(
        RankCase("halo", WINDOWS[3], 4, causal, padding)
        for causal in (True, False)
        for padding in ("left", "both", "first", "lengths")
    ),
    *(
        RankCase("halo", spec, 4, causal, "holes")
        for spec in ("dilated_window:window=3:dilation=3", "luong_local:window=7:position=own")
        for causal in (True, False)
    ),
    *(RankCase("halo", "sliding_window:window=30", 4, False, length=200, head_dim=d, strided=True) for d in (32, 128)),
    RankCase("halo", WINDOWS[1], 1, padding="both"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_halos_equal_one_process(rank_processes: RankProcesses, case: RankCase) -> None:
    differences = find_differences(case, rank_processes.run(run_on_rank, case, world=case.world))
    assert max(differences.values()) < 2e-6, differences


@pytest.mark.parametrize("halo", [Halo(0, 0), Halo(3, 0), Halo(4, 4), Halo(9, 2), Halo(100, 100)], ids=str)
def test_ranks_send_what_others_receive(halo: Halo) -> None:
    length, world = 4, 4
    ranks = [Ranks(None, rank, world) for rank in range(world)]  # pyright: ignore[reportArgumentType]
    sent = {(r.rank, s.peer, s.is_back): s.size for r in ranks for s in list_sends(halo, length, r)}
    received = {(s.peer, r.rank, s.is_back): s.size for r in ranks for s in list_receives(halo, length, r)}
    assert sent == received
    for rank in range(world):  # as many neighbours as there are, up to the halo
        before = sum(size for (_, peer, is_back), size in sent.items() if peer == rank and is_back)
        after = sum(size for (_, peer, is_back), size in sent.items() if peer == rank and not is_back)
        assert (before, after) == (min(halo.back, rank * length), min(halo.ahead, (world - 1 - rank) * length))


def test_halos_of_mechanisms() -> None:
    assert find_halo(ea.create("sliding_window:window=7"), causal=True) == Halo(7, 0)
    assert find_halo(ea.create("sliding_window:window=7"), causal=False) == Halo(7, 7)
    assert find_halo(ea.create("dilated_window:window=4:dilation=3"), causal=False) == Halo(12, 12)
    for spec in ("full", "longformer", "attention_sinks", "linear"):
        assert find_halo(ea.create(spec), causal=True) is None
    past = ea.SparseAttention(ea.patterns.Band(0, None))
    assert find_halo(past, causal=True) is None
    ahead = ea.SparseAttention(ea.patterns.Band(-3, -1))
    assert find_halo(ahead, causal=False) == Halo(0, 3)


@pytest.mark.slow
def test_a_direction_without_a_halo_is_refused(rank_processes: RankProcesses) -> None:
    (text,) = rank_processes.run(run_on_rank, RankCase("halo", "attention_sinks", 1), world=1)
    assert text.startswith("UnsupportedError: attention_sinks")
    assert "does not support context_parallel='halo': its queries see keys at any distance" in text


def test_window_of_one_position_has_no_halo() -> None:
    attn = ea.SparseAttention(ea.patterns.Band(0, 0))
    assert find_halo(attn, causal=False) == Halo(0, 0)
    assert torch.equal(attn(*[torch.ones(1, 1, 3, 4)] * 3), torch.ones(1, 1, 3, 4))
