"""Which nodes measure together."""

from __future__ import annotations

import time
from typing import Any

import pytest
from simulated_cluster import SimulatedCluster, SimulatedNode

from efficient_attn.bench.nodes import node_facts
from efficient_attn.bench.nodes.node_facts import Node, select_nodes
from efficient_attn.engines.cluster import Slot
from efficient_attn.errors import UsageError


def _make(name: str, machine: str = "A#1", torch: str = "2.13", **facts: Any) -> Node:
    slot = Slot(name, name, "cpu")
    environment = {"environment": {"machine": machine, "torch": torch}}
    remote = SimulatedNode(slot, SimulatedCluster(), facts=environment | facts)
    return Node.describe(slot, remote, {}, 1.0)


def _list_names(nodes: list[Node]) -> list[str]:
    return [node.slot.name for node in nodes]


def test_the_largest_class_is_selected_whatever_the_order() -> None:
    nodes = [_make("a"), _make("b", "B#2"), _make("c", "B#2"), _make("d", torch="2.12")]
    for order in (nodes, nodes[::-1]):
        selected, others = select_nodes(order, None)
        assert sorted(_list_names(selected)) == ["b", "c"]
        assert sorted(_list_names(others)) == ["a", "d"]
    first, second = _make("a"), _make("b", "B#2")
    assert _list_names(select_nodes([first, second], None)[0]) == _list_names(select_nodes([second, first], None)[0])


@pytest.mark.parametrize("machine", ["A", "A#1"])
def test_a_class_is_named_with_or_without_its_digest(machine: str) -> None:
    nodes = [_make("a"), _make("b", "B#2"), _make("c", "B#2"), _make("d", "A#1")]
    assert _list_names(select_nodes(nodes, machine)[0]) == ["a", "d"]


def test_another_machine_of_the_same_name_is_another_class() -> None:
    selected, others = select_nodes([_make("a", "A#1"), _make("b", "A#2"), _make("c", "A#2")], "A")
    assert (_list_names(selected), _list_names(others)) == (["b", "c"], ["a"])


def test_a_clock_within_the_time_of_the_answer_does_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _make("a").clock_s == 0
    now = time.time()
    assert _make("a", time_s=now - 60).clock_s == pytest.approx(60, abs=5)
    assert _make("a", time_s=now + 60).clock_s == pytest.approx(60, abs=5)
    assert _make("a", time_s=now + 3).find_fault() is None
    assert "clock differs by" in (_make("a", time_s=now - 60).find_fault() or "")
    monkeypatch.setattr(node_facts, "MOST_CLOCK_DIFFERENCE_S", 100)
    assert _make("a", time_s=now - 60).find_fault() is None


def test_one_line_names_the_first_node_with_a_fault() -> None:
    nodes = [_make("a"), _make("b", version="0"), _make("c", sources="x")]
    with pytest.raises(UsageError, match=r"^b: version 0, here .* on all nodes \(and 1 other nodes\)$"):
        select_nodes(nodes, None)
