"""Units are taken once, come back from lost nodes, and end the wait of others."""

from __future__ import annotations

import threading

import pytest
import tiny_suites

from efficient_attn.bench.case import group_cases
from efficient_attn.bench.nodes.unit import Unit, make_units
from efficient_attn.bench.nodes.unit_queue import UnitQueue
from efficient_attn.engines.cluster import Slot

A, B, GPU = Slot("a", "a", "cpu"), Slot("b", "b", "cpu"), Slot("b", "b", "cuda")


@pytest.fixture(scope="module")
def units() -> list[Unit]:
    cases = tiny_suites.plan(tiny_suites.SEVERAL, axes={"seq_len": [8, 16]})
    return make_units(cases, group_cases(cases), 1)[:2]


def test_units_are_taken_in_order_once_by_places_of_their_device(units: list[Unit]) -> None:
    waiting = UnitQueue(units)
    assert waiting.take(GPU) is None
    assert (waiting.take(A), waiting.take(B)) == (units[0], units[1])
    assert (waiting.pending, waiting.has_planned, waiting.is_done) == ((), False, False)
    waiting.finish(A)
    waiting.finish(B)
    assert waiting.is_done
    assert waiting.take(A) is None


def test_a_place_waits_for_a_unit_that_may_come_back(units: list[Unit]) -> None:
    waiting = UnitQueue(units[:1])
    assert waiting.take(A) == units[0]
    taken: list[Unit | None] = []
    thread = threading.Thread(target=lambda: taken.append(waiting.take(B)))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    waiting.finish(A, units[0].retry([]), first=True)
    thread.join(10)
    assert [unit and unit.losses for unit in taken] == [1]


def test_a_repeated_unit_is_not_for_the_node_that_measured_it(units: list[Unit]) -> None:
    waiting = UnitQueue(units[:1])
    waiting.take(A)
    waiting.finish(A, units[0].repeat("a"))
    assert waiting.take(A) is None
    assert not waiting.has_planned
    repeated = waiting.take(B)
    assert repeated is not None
    assert repeated.is_repeat


def test_nothing_is_taken_after_the_end(units: list[Unit]) -> None:
    waiting = UnitQueue(units)
    assert waiting.take(A) == units[0]
    results: list[Unit | None] = []
    thread = threading.Thread(target=lambda: results.extend((waiting.take(B), waiting.take(B))))
    thread.start()
    thread.join(0.1)
    waiting.close()
    thread.join(10)
    assert results == [units[1], None]
    assert waiting.take(A) is None
