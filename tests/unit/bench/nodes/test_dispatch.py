"""Every planned case ends in exactly one record, whichever nodes are lost, join, or do not fit."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import tiny_suites
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_cluster import SimulatedCluster, SimulatedNode
from tiny_suites import TRAINING

from efficient_attn.bench.case import Case, group_cases
from efficient_attn.bench.data_files import CarriedFiles
from efficient_attn.bench.nodes import dispatch
from efficient_attn.bench.nodes.dispatch import Dispatcher, Notice, Repeated
from efficient_attn.bench.nodes.unit import CheckpointFile, make_units
from efficient_attn.bench.session import SessionSettings
from efficient_attn.engines.cluster import Slot
from efficient_attn.errors import UsageError
from efficient_attn.results.checkpoints import digest_of
from efficient_attn.results.rows import Record

SETTINGS = SessionSettings(entry={"suite": {"name": "tiny"}}, timeout_s=10)
LENGTHS = {"seq_len": [8, 16, 24, 32], "causal": [False, True]}


@pytest.fixture(scope="module")
def timed() -> list[Case]:
    return tiny_suites.plan(tiny_suites.SEVERAL, axes=LENGTHS)


@pytest.fixture(scope="module")
def trainings() -> list[Case]:
    return tiny_suites.plan(TRAINING)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "ABSENCE_S", 0.5)
    monkeypatch.setattr(dispatch, "SEARCH_S", 0.05)


def _dispatch(cluster: SimulatedCluster, cases: list[Case], **options: Any) -> list[Any]:
    units = make_units(cases, group_cases(cases), options.pop("jobs", 1))
    return list(Dispatcher(cluster, units, SETTINGS, CarriedFiles(), **options).run())


def _list_digests(messages: list[Any]) -> list[str]:
    return [digest_of(m.row.case_key) for m in messages if isinstance(m, Record)]


def _check_complete(messages: list[Any], cases: list[Case]) -> None:
    """Every case has a record. Cases that are timed together may have a second one, which the run does not store."""
    assert set(_list_digests(messages)) == {case.digest for case in cases}
    entries = {m["run_id"]: m for m in messages if isinstance(m, dict)}
    assert all(entry["finished"] for entry in entries.values())
    assert {m.row.run_id for m in messages if isinstance(m, Record)} <= set(entries)


def test_groups_run_whole_on_one_node_and_all_nodes_work(timed: list[Case]) -> None:
    cluster = SimulatedCluster(seconds=0.01)
    messages = _dispatch(cluster, timed, repeats=False)
    assert Counter(_list_digests(messages)) == {case.digest: 1 for case in timed}
    _check_complete(messages, timed)
    assert {name for name, _, _ in cluster.measured} == {"a", "b"}
    for group, members in group_cases(timed):
        assert [len(unit.cases) for _, unit, _ in cluster.measured if unit.groups[0][0] == group] == [len(members)]
    assert cluster.stopped == {"a": 1, "b": 1}


def test_all_nodes_use_the_choices_of_kernels_of_the_first(timed: list[Case]) -> None:
    cluster = SimulatedCluster(names=("a", "b", "c"))
    _dispatch(cluster, timed, earlier=[{"run_id": "earlier"}])
    earlier = [[entry["run_id"].partition("-")[0] for entry in task.earlier] for _, task in cluster.tasks]
    assert earlier == [["earlier"], ["earlier", "r1"], ["earlier", "r1"]]


@settings(max_examples=40)
@given(a=st.lists(st.integers(0, 5), max_size=4), b=st.lists(st.integers(0, 5), max_size=4), training=st.booleans())
def test_lost_nodes_lose_no_case(
    timed: list[Case], trainings: list[Case], a: list[int], b: list[int], training: bool
) -> None:
    cases = trainings if training else timed
    cluster = SimulatedCluster(plans={"a": list(a), "b": list(b)})
    if len(a) >= 3 and len(b) >= 3:  # both places may be given up
        with contextlib.suppress(UsageError):
            messages = _dispatch(cluster, cases, repeats=False)
            _check_complete(messages, cases)
        return
    messages = _dispatch(cluster, cases, repeats=False)
    _check_complete(messages, cases)
    counts = Counter(_list_digests(messages))
    if training:  # what has a record is not trained again
        assert set(counts.values()) == {1}


def test_a_unit_that_ends_three_nodes_fails(timed: list[Case]) -> None:
    cluster = SimulatedCluster(names=("a",), plans={"a": [0, 0, 0]})
    with pytest.raises(UsageError, match="all nodes have been lost"):
        _dispatch(cluster, timed)
    members = group_cases(timed)[0][1]
    cluster = SimulatedCluster(names=("a",), plans={"a": [0, 0, 0]})
    messages = _dispatch(cluster, members)
    rows = [m.row for m in messages if isinstance(m, Record)]
    assert [row.status for row in rows] == ["crashed"] * len(members)
    assert {row.machine for row in rows} == {"A#1"}
    assert {row.run_id for row in rows} <= {m["run_id"] for m in messages if isinstance(m, dict)}
    assert {row.reason for row in rows} == {"3 nodes were lost while they measured it, the last one: planned"}
    assert sum("was lost: planned" in m.text for m in messages if isinstance(m, Notice)) == 3
    lost = [m for m in messages if isinstance(m, dict) and "lost" in m]
    assert len(lost) == 3
    assert all(entry["finished"] for entry in lost)


def test_cases_of_a_chain_get_the_records_and_checkpoints_of_others(trainings: list[Case]) -> None:
    first = trainings[0].digest
    file = CheckpointFile(f"{first}.model.pt", b"model")
    cluster = SimulatedCluster(names=("a",))
    cluster.checkpoints["a"] = [CheckpointFile(f"{trainings[1].digest}.pt", b"state")]
    messages = _dispatch(cluster, trainings, checkpoints=[file, CheckpointFile("0" * 12 + ".pt", b"other")])
    assert [m.content for m in messages if isinstance(m, CheckpointFile)] == [b"state"]
    sent = [list(needed.files) for _, _, needed in cluster.measured]
    assert file in sent[0]
    assert all(other.digest != "0" * 12 for files in sent for other in files)


def test_two_chains_at_a_time_with_two_jobs(trainings: list[Case]) -> None:
    cluster = SimulatedCluster(names=("a",))
    messages = _dispatch(cluster, trainings, jobs=2)
    assert Counter(_list_digests(messages)) == {case.digest: 1 for case in trainings}
    assert len(cluster.measured) == 1


def test_a_second_node_repeats_some_groups(timed: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "choose_repeated", lambda units: {0, 3})
    cluster = SimulatedCluster(seconds=0.005)
    messages = _dispatch(cluster, timed)
    assert Counter(_list_digests(messages)) == {case.digest: 1 for case in timed}
    by_unit = {n: [name for name, unit, _ in cluster.measured if unit.number == n] for n in range(8)}
    assert [sorted(by_unit[n]) for n in (0, 3)] == [["a", "b"], ["a", "b"]]
    assert all(len(by_unit[n]) == 1 for n in range(8) if n not in (0, 3))
    repeated = [m.record.row.case_key for m in messages if isinstance(m, Repeated)]
    expected = [case.key for n in (0, 3) for case in group_cases(timed)[n][1]]
    assert sorted(repeated) == sorted(expected)


def test_without_a_second_node_nothing_is_repeated(timed: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "choose_repeated", lambda units: {0})
    messages = _dispatch(SimulatedCluster(names=("a",)), timed)
    assert not any(isinstance(m, Repeated) for m in messages)
    cluster = SimulatedCluster(plans={"b": [0, 0, 0]}, seconds=0.02)  # lost before the repetition
    notices = [m.text for m in _dispatch(cluster, timed) if isinstance(m, Notice)]
    assert notices[-1] == "1 groups were not measured on a second node: it has been lost"


def test_nodes_of_another_class_are_named_and_not_used(timed: list[Case]) -> None:
    other = {"environment": {"machine": "B#2", "torch": "2.13"}}
    cluster = SimulatedCluster(names=("a", "b", "c"), facts={"c": other})
    messages = _dispatch(cluster, timed)
    assert Notice("c is not used: another machine (B#2, 2.13)") in messages
    assert {name for name, _, _ in cluster.measured} <= {"a", "b"}
    cluster = SimulatedCluster(names=("a", "b", "c"), facts={"c": other})
    _dispatch(cluster, timed, machine="B")
    assert {name for name, _, _ in cluster.measured} == {"c"}


def test_a_node_that_joins_works_if_it_fits(timed: list[Case]) -> None:
    def join(cluster: SimulatedCluster) -> None:
        cluster.names = ("a", "b", "old") if cluster.measured else ("a",)

    cluster = SimulatedCluster(names=("a",), on_list=join, seconds=0.05, facts={"old": {"version": "0.1"}})
    messages = _dispatch(cluster, timed)
    _check_complete(messages, timed)
    texts = [m.text for m in messages if isinstance(m, Notice)]
    assert "b has joined" in texts
    assert any(text.startswith("old is not used: version 0.1, here ") for text in texts)
    assert {name for name, _, _ in cluster.measured} == {"a", "b"}


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"version": "0.1"}, "b: version 0.1, here .*; install the same version on all nodes"),
        ({"sources": "0" * 12}, "b: the digest of the sources is 000000000000, here .*"),
        ({"time_s": 1e9}, "b: its clock differs by [0-9]+ s; synchronize the clocks"),
    ],
)
def test_nodes_that_cannot_measure_are_refused_by_name(timed: list[Case], facts: dict[str, Any], text: str) -> None:
    cluster = SimulatedCluster(facts={"b": facts})
    with pytest.raises(UsageError, match=text):
        _dispatch(cluster, timed)
    assert cluster.measured == []


def test_no_place_no_answer_and_no_such_machine(timed: list[Case]) -> None:
    with pytest.raises(UsageError, match=r"no node offers a place for cpu; see docs/clusters\.md"):
        _dispatch(SimulatedCluster(names=()), timed)
    with pytest.raises(UsageError, match="no node answers: a: planned: unreachable"):
        _dispatch(SimulatedCluster(unreachable=frozenset("ab")), timed)
    with pytest.raises(UsageError, match="no node of the class Z; there are A#1"):
        _dispatch(SimulatedCluster(), timed, machine="Z")
    messages = _dispatch(SimulatedCluster(unreachable=frozenset("b")), timed)
    assert messages[0] == Notice("b: planned: unreachable")


def test_a_plan_for_two_devices_is_refused(timed: list[Case]) -> None:
    group = replace(timed[0].group, config=replace(timed[0].group.config, device="cuda"))
    cases = [*timed, replace(timed[0], group=group)]
    with pytest.raises(UsageError, match="groups of cpu and cuda; give one --device and another --out"):
        _dispatch(SimulatedCluster(), cases)


def test_errors_of_a_node_name_it(timed: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: SimulatedNode, method: str, *arguments: Any, seconds: float) -> Any:
        if method == "begin":
            raise UsageError("my_attn: import failed")
        return call(self, method, *arguments, seconds=seconds)

    call = SimulatedNode.call
    monkeypatch.setattr(SimulatedNode, "call", refuse)
    with pytest.raises(UsageError, match=r"^[ab]: my_attn: import failed$"):
        _dispatch(SimulatedCluster(), timed)


def test_a_node_that_is_slow_to_join_holds_up_nothing(timed: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    is_complete, starts = threading.Event(), []
    start = SimulatedCluster.start

    def wait_and_start(self: SimulatedCluster, slot: Slot, program: str) -> SimulatedNode:
        if slot.name == "slow":
            starts.append(is_complete.is_set())
            is_complete.wait(20)
        return start(self, slot, program)

    def join(cluster: SimulatedCluster) -> None:
        cluster.names = ("a", "slow") if cluster.measured else ("a",)

    monkeypatch.setattr(SimulatedCluster, "start", wait_and_start)
    cluster = SimulatedCluster(names=("a",), on_list=join, seconds=0.02)
    units = make_units(timed, group_cases(timed), 1)
    digests: list[str] = []
    for message in Dispatcher(cluster, units, SETTINGS, CarriedFiles()).run():
        digests += _list_digests([message])
        if len(digests) == len(timed):
            is_complete.set()
    assert sorted(digests) == sorted(case.digest for case in timed)
    assert starts == [False], "it had begun to start before all was measured"
    assert is_complete.is_set()


def test_programs_of_low_priority_are_named(timed: list[Case]) -> None:
    messages = _dispatch(SimulatedCluster(facts={"b": {"niceness": 15}}), timed)
    notices = [message.text for message in messages if isinstance(message, Notice)]
    remedy = "start Ray there with RAY_worker_niceness=0"
    assert notices == [f"b: other programs go before ours (niceness 15); {remedy}"]
