"""Units: groups and chains whole, what they may read, and which are repeated."""

from __future__ import annotations

import pytest
import tiny_suites

from efficient_attn.bench.case import Case, group_cases
from efficient_attn.bench.measuring.parallel import find_chain
from efficient_attn.bench.nodes.unit import CheckpointFile, choose_repeated, make_units
from efficient_attn.bench.planning.plan_split import split_plan

HYBRID = """
title           = "Hybrid"
baseline        = "full"
measure         = ["hybrid"]
model           = ["smollm2"]
chosen_at       = 128
choice_segments = 1
rules           = ["greedy", "ends"]
limits          = [0.02]
axes            = { seq_len = [128, 256], threads = [1] }
variant         = [{ name = "full" }, { name = "sliding_window", options = { window = 64 } }]
"""
TRAINING = tiny_suites.TRAINING.replace('{ name = "linear" }', '{ name = "linear" }, { name = "performer" }')


@pytest.fixture(scope="module")
def timed() -> list[Case]:
    return tiny_suites.plan(tiny_suites.SEVERAL, axes={"seq_len": list(range(8, 168, 8)), "causal": [False, True]})


def test_a_timed_group_is_a_unit_and_reads_nothing(timed: list[Case]) -> None:
    units = make_units(timed, group_cases(timed), 2)
    assert [unit.groups[0][0] for unit in units] == [group for group, _ in group_cases(timed)]
    assert [case for unit in units for case in unit.cases] == timed
    assert {(unit.needed, unit.is_timed, unit.device) for unit in units} == {((), True, "cpu")}


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_units_of_trainings_have_whole_chains(jobs: int) -> None:
    cases = tiny_suites.plan(TRAINING)
    missing = cases[3:]
    units = make_units(cases, group_cases(missing), jobs)
    assert len(units) == -(-3 // jobs)
    assert sorted(case.key for unit in units for case in unit.cases) == sorted(case.key for case in missing)
    for chain in {find_chain(case) for case in missing}:
        of_chain = [case for case in cases if find_chain(case) == chain]
        (unit,) = [unit for unit in units if unit.cases[0] and any(case in unit.cases for case in of_chain)]
        assert {case.digest for case in of_chain} <= set(unit.needed), "measured ones too"
        assert not unit.is_timed


def test_stages_of_a_hybrid_stay_together_in_order_on_nodes_and_in_parts() -> None:
    cases = tiny_suites.plan(HYBRID)
    assert len(group_cases(cases)) > 20
    (unit,) = make_units(cases, group_cases(cases), 1)
    assert unit.cases == cases
    assert set(unit.needed) == {case.digest for case in cases}
    with pytest.raises(Exception, match="the plan has 1 groups"):
        split_plan(cases, 2, [])


def test_what_is_left_of_a_unit_whose_node_is_lost(timed: list[Case]) -> None:
    unit = make_units(timed, group_cases(timed), 1)[0]
    assert unit.retry([unit.cases[0].digest]).cases == unit.cases, "times are paired"
    trainings = tiny_suites.plan(TRAINING)
    unit = make_units(trainings, group_cases(trainings), 5)[0]
    again = unit.retry([unit.cases[0].digest, unit.cases[4].digest])
    assert again.cases == [unit.cases[0], unit.cases[4]]
    assert (again.losses, again.needed, again.number) == (1, unit.needed, unit.number)
    assert again.repeat("a").losses == 0


def test_a_twentieth_of_the_timed_groups_is_repeated_and_always_the_same(timed: list[Case]) -> None:
    units = make_units(timed, group_cases(timed), 1)
    assert len(units) == 40
    assert len(choose_repeated(units)) == 2
    assert choose_repeated(units) == choose_repeated(units[::-1])
    assert choose_repeated(units[:9]) == set()
    trainings = tiny_suites.plan(TRAINING)
    assert choose_repeated(make_units(trainings, group_cases(trainings), 1), 1.0) == set()


def test_the_case_of_a_checkpoint_is_in_its_name() -> None:
    assert CheckpointFile("0123456789ab.model.pt", b"").digest == "0123456789ab"
