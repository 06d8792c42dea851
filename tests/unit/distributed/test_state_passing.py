"""Linear and recurrent mechanisms whose states pass between processes."""

import pytest
from rank_cases import RankCase, find_differences, run_on_rank
from rank_processes import RankProcesses

import efficient_attn as ea
from efficient_attn.distributed.state_passing import why_no_states

LINEAR = ("linear", "performer:n_features=32", "cosformer", "taylor", "relu_linear")
DECAYS = ("retention", "lightning")
RECURRENT = ("gla", "mamba2", "delta_net:beta_max=2", "gated_delta_net", "kda", "delta_product:n=2")
CASES = [
    *(
        RankCase("state", spec, 4, causal, padding)
        for spec in LINEAR
        for causal in (True, False)
        for padding in ("", "both")
    ),
    *(RankCase("state", spec, 2, True, padding) for spec in (*DECAYS, *RECURRENT) for padding in ("left", "right")),
    *(RankCase("state", spec, 4, True, "first", length=300) for spec in ("linear", *DECAYS, *RECURRENT)),  # chunks
    *(RankCase("state", spec, 2, length=40, head_dim=128) for spec in ("linear", "retention", "gated_delta_net")),
    *(RankCase("state", spec, 2, value_dim=24, strided=True) for spec in ("linear", "lightning", "delta_net")),
    *(RankCase("state", spec, 1, padding="lengths") for spec in ("linear", "retention", "gla")),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_passed_states_equal_one_process(rank_processes: RankProcesses, case: RankCase) -> None:
    differences = find_differences(case, rank_processes.run(run_on_rank, case, world=case.world))
    assert len(differences) == 4 + len(case.create().traits.inputs)
    assert max(differences.values()) < 4e-6, differences


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("full", "no state of a fixed size"),
        ("retention:normalised=true", "count the positions of all ranks"),
        ("random_feature:gated=true", "depend on the positions before"),
    ],
)
def test_reasons(spec: str, reason: str) -> None:
    text = why_no_states(ea.create(spec, dims=ea.Dims(heads=2, head_dim=8)))
    assert text is not None
    assert reason in text


@pytest.mark.slow
def test_a_horizon_is_that_of_the_whole_sequence(rank_processes: RankProcesses) -> None:
    case = RankCase("state", "cosformer", 2, max_len=16)
    for text in rank_processes.run(run_on_rank, case, world=2):
        assert text == "UsageError: cosformer: made for 16 positions (dims.max_len), all ranks have 24"
