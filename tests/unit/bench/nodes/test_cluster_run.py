"""A run on nodes: rows, sessions, checkpoints and repeated groups in its folder, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_suites
from simulated_cluster import SimulatedCluster

from efficient_attn.bench import run as run_module
from efficient_attn.bench.nodes import dispatch
from efficient_attn.bench.nodes.cluster_run import REPEATED_FOLDER, Nodes
from efficient_attn.bench.planning.plan_split import split_plan
from efficient_attn.bench.run import NodeWarning, RunOutcome
from efficient_attn.errors import UsageError
from efficient_attn.results.store import read, read_sessions

LENGTHS = {"seq_len": [8, 16]}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "ABSENCE_S", 0.5)


def _run(folder: Path, cluster: SimulatedCluster, **options: Any) -> RunOutcome:
    loaded = tiny_suites.parse(tiny_suites.SEVERAL)
    cases = tiny_suites.plan(tiny_suites.SEVERAL, axes=LENGTHS)
    return run_module.run(loaded, cases, folder, nodes=Nodes(cluster=cluster), start_method="inline", **options)


def _count_lines(folder: Path) -> int:
    return len((folder / "rows.jsonl").read_text().splitlines())


def test_each_case_has_one_line_and_each_node_a_session(tmp_path: Path) -> None:
    outcome = _run(tmp_path / "out", SimulatedCluster(seconds=0.01))
    cases = tiny_suites.plan(tiny_suites.SEVERAL, axes=LENGTHS)
    assert outcome.statuses == {"skipped": len(cases)}
    assert _count_lines(tmp_path / "out") == len(cases)
    assert [record.row.case_key for record in read(tmp_path / "out")] == [case.key for case in cases], "plan's order"
    assert sorted(session["node"] for session in read_sessions(tmp_path / "out")) == ["a", "b"]


def test_a_group_that_was_measured_again_has_no_second_rows(tmp_path: Path) -> None:
    with pytest.warns(NodeWarning, match="a was lost: planned"):
        _run(tmp_path / "out", SimulatedCluster(names=("a",), plans={"a": [1]}))
    assert _count_lines(tmp_path / "out") == len(tiny_suites.plan(tiny_suites.SEVERAL, axes=LENGTHS))
    lost, session = read_sessions(tmp_path / "out")
    assert lost["lost"] == "planned"
    assert lost["finished"]
    assert session["finished"]


def test_a_run_whose_nodes_are_lost_is_resumed(tmp_path: Path) -> None:
    cluster = SimulatedCluster(names=("a",), plans={"a": [3, 0, 0, 0]})
    with pytest.warns(NodeWarning), pytest.raises(UsageError, match="continue with --resume"):
        _run(tmp_path / "out", cluster)
    before = (tmp_path / "out" / "rows.jsonl").read_bytes()
    statuses = [record.row.status for record in read(tmp_path / "out")]
    assert statuses.count("skipped") == 3, "measured"
    assert statuses.count("crashed") > 0, "of the unit that ended three nodes"
    cluster = SimulatedCluster(names=("a",))
    outcome = _run(tmp_path / "out", cluster, resume=True, retry_failed=True)
    cases = tiny_suites.plan(tiny_suites.SEVERAL, axes=LENGTHS)
    assert outcome.statuses == {"skipped": len(cases)}
    content = (tmp_path / "out" / "rows.jsonl").read_bytes()
    assert content.startswith(before)
    assert content.count(b"\n") == len(cases) + statuses.count("crashed")
    assert {unit.number for _, unit, _ in cluster.measured} == set(range(len(cluster.measured)))


def test_repeated_groups_are_a_run_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "choose_repeated", lambda units: {1})
    _run(tmp_path / "out", SimulatedCluster(seconds=0.01))
    cases = tiny_suites.plan(tiny_suites.SEVERAL, axes=LENGTHS)
    assert _count_lines(tmp_path / "out") == len(cases)
    repeated = read(tmp_path / "out" / REPEATED_FOLDER)
    assert {record.row.case_key for record in repeated} <= {case.key for case in cases}
    first = {record.row.case_key: record.row.run_id for record in read(tmp_path / "out")}
    assert repeated
    assert all(first[record.row.case_key] != record.row.run_id for record in repeated), "by the other node"
    assert [session["run_id"] for session in read_sessions(tmp_path / "out" / REPEATED_FOLDER)] == [
        repeated[0].row.run_id
    ]


def test_nodes_of_another_class_than_the_folder_are_refused(tmp_path: Path) -> None:
    with pytest.warns(NodeWarning), pytest.raises(UsageError):
        _run(tmp_path / "out", SimulatedCluster(names=("a",), plans={"a": [1, 0, 0, 0]}))
    facts = {"a": {"environment": {"machine": "B#2", "torch": "2.13"}}}
    before = (tmp_path / "out" / "run.json").read_bytes()
    with pytest.raises(UsageError, match="no node of the class A#1; there are B#2"):
        _run(tmp_path / "out", SimulatedCluster(names=("a",), facts=facts), resume=True)
    assert (tmp_path / "out" / "run.json").read_bytes() == before
    assert json.loads(before)


def test_a_node_that_is_not_ready_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimulatedCluster(names=("a",))
    original = cluster.start

    def start(slot: Any, program: str) -> Any:
        node = original(slot, program)
        return replace(node, entry={"readiness": {"warning": "busy"}})

    monkeypatch.setattr(cluster, "start", start)
    with pytest.warns(run_module.NoisyMachine, match="a: not ready to measure: busy"):
        _run(tmp_path / "out", cluster)


def test_a_part_of_a_plan_runs_on_nodes(tmp_path: Path) -> None:
    loaded = tiny_suites.parse(tiny_suites.SEVERAL)
    cases = tiny_suites.plan(tiny_suites.SEVERAL, axes=LENGTHS)
    part = split_plan(cases, 2, ["several.toml"])[1]
    selected = part.select(cases, Path("2.json"))
    nodes = Nodes(cluster=SimulatedCluster(names=("a",)))
    run_module.run(loaded, selected, tmp_path / "out", nodes=nodes, part=part, start_method="inline")
    assert [record.row.case_key for record in read(tmp_path / "out")] == [case.key for case in selected]
    (session,) = read_sessions(tmp_path / "out")
    assert (session["plan"], session["part"], session["order"]) == (part.plan, [2, 2], list(part.order))
