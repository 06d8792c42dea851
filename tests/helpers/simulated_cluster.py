"""A cluster within this process, whose nodes are objects with faults that a test plans."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from efficient_attn.bench.measuring.prepared_case import make_failure
from efficient_attn.bench.nodes.node_program import Needed
from efficient_attn.bench.nodes.unit import CheckpointFile, Unit
from efficient_attn.bench.sources import digest_package
from efficient_attn.engines.cluster import NodeLost, Slot


@dataclass
class SimulatedNode:
    """A program. cases: how many it measures before it is lost; None for all. seconds: for each."""

    slot: Slot
    cluster: SimulatedCluster
    cases: int | None = None
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    entry: dict[str, Any] = field(default_factory=dict)

    def call(self, method: str, *arguments: Any, seconds: float) -> Any:
        if method == "describe":
            facts = {"version": version("efficient-attn"), "sources": digest_package(), "time_s": time.time()}
            facts["niceness"] = 0
            return facts | {"environment": {"machine": "A#1", "torch": "2.13"}} | self.facts
        if method == "begin":
            with self.cluster.lock:
                self.cluster.tasks.append((self.slot, arguments[0]))
                number = len(self.cluster.tasks)
            environment = self.call("describe", seconds=1)["environment"]
            self.entry |= arguments[0].settings.entry
            self.entry |= {"run_id": f"r{number}-{time.time_ns()}", "node": self.slot.name, "finished": None}
            self.entry |= {"environment": environment, "started": f"{time.time_ns()}"}
            return dict(self.entry)
        if method == "collect_checkpoints":
            return self.cluster.checkpoints.pop(self.slot.name, [])
        assert method == "end"
        return self.entry | {"finished": "now"}

    def stream(self, method: str, *arguments: Any, pause_s: float) -> Iterator[Any]:
        unit, needed = arguments
        assert method == "measure"
        assert isinstance(unit, Unit)
        assert isinstance(needed, Needed)
        with self.cluster.lock:
            self.cluster.measured.append((self.slot.name, unit, needed))
        for case in unit.cases:
            if self.cases == 0:
                raise NodeLost("planned")
            yield None
            time.sleep(self.seconds)
            self.cases = None if self.cases is None else self.cases - 1
            record = make_failure(case, "skipped", "simulated")
            record.row.run_id, record.row.machine = self.entry["run_id"], self.entry["environment"]["machine"]
            yield record

    def stop(self) -> None:
        self.cluster.stopped[self.slot.name] += 1


@dataclass
class SimulatedCluster:
    """names: of the nodes. plans: by name, how many cases each of its programs measures, one after another; programs
    without a plan measure all. facts: by name, those that differ."""

    names: Sequence[str] = ("a", "b")
    plans: dict[str, list[int]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    on_list: Callable[[SimulatedCluster], None] = lambda cluster: None
    unreachable: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.tasks: list[tuple[Slot, Any]] = []
        self.measured: list[tuple[str, Unit, Needed]] = []
        self.stopped: Counter[str] = Counter()
        self.checkpoints: dict[str, list[CheckpointFile]] = defaultdict(list)
        self.closed = False

    def list_slots(self, devices: Sequence[str]) -> list[Slot]:
        self.on_list(self)
        return [Slot(name, name, "cpu") for name in self.names] if "cpu" in devices else []

    def start(self, slot: Slot, program: str) -> SimulatedNode:
        assert program == "efficient_attn.bench.nodes.node_program:NodeProgram"
        if slot.name in self.unreachable:
            raise NodeLost("planned: unreachable")
        plans = self.plans.get(slot.name)
        cases = plans.pop(0) if plans else None
        return SimulatedNode(slot, self, cases, self.seconds, self.facts.get(slot.name, {}))

    def close(self) -> None:
        self.closed = True
