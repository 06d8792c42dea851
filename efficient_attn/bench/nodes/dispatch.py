"""Give the units of a plan to nodes, and collect what they send. A unit of a lost node goes to another one.

Each place of the cluster is served by a thread, which waits for its node; the caller's thread alone stores results.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ...engines.cluster import Cluster, NodeLost, Slot
from ...errors import UsageError
from ...results.checkpoints import digest_of
from ...results.rows import Record
from ..data_files import CarriedFiles
from ..measuring.prepared_case import make_failure
from ..session import Entry, SessionSettings, utc_now
from .node_facts import Node, select_nodes
from .node_program import Needed, NodeProgram, NodeTask
from .unit import CheckpointFile, Unit, choose_repeated
from .unit_queue import UnitQueue

PROGRAM = f"{NodeProgram.__module__}:{NodeProgram.__qualname__}"
MOST_LOSSES = 3  # of nodes by one unit, or by one place without a result in between
START_S = 300.0  # for a node to start and describe itself
BEGIN_S = 900.0  # for a node to import plug-ins and to measure itself
PAUSE_S = 10.0  # without news, after which a node is asked for some
SEARCH_S = 5.0  # between two looks for further nodes
ABSENCE_S = 60.0  # without any node, after which the run stops


@dataclass(frozen=True)
class Notice:
    """Something that users should know about a node."""

    text: str


@dataclass(frozen=True)
class Repeated:
    """A record of a case that another node has measured for the run."""

    record: Record


Message: TypeAlias = "Entry | Record | Repeated | CheckpointFile | Notice"


@dataclass
class Dispatcher:
    """A run on the nodes of a cluster.

    records, checkpoints: of the run's folder. earlier: entries of the run's folder. machine: the only class of
    machines, by default that of most nodes. answer_s: in which a node has to answer. repeats: whether some groups are
    measured by a second node.
    """

    cluster: Cluster
    units: Sequence[Unit]
    settings: SessionSettings
    files: CarriedFiles
    variables: Mapping[str, str | None] = field(default_factory=dict)
    records: Sequence[Record] = ()
    checkpoints: Sequence[CheckpointFile] = ()
    earlier: Sequence[Entry] = ()
    machine: str | None = None
    answer_s: float = 60.0
    repeats: bool = True

    def __post_init__(self) -> None:
        self._queue = UnitQueue(self.units)
        self._threads: dict[Slot, threading.Thread] = {}
        self._nodes: dict[Slot, Node] = {}
        self._messages: queue.Queue[Message | BaseException] = queue.Queue()
        self._sessions: set[Slot] = set()  # that have begun and not ended
        self._name = f"efficient-attn-{secrets.token_hex(8)}"
        self._choices: list[Entry] = []
        self._first_choices = threading.Lock()
        self._records = {digest_of(record.row.case_key): record for record in self.records}
        self._files = {file.name: file for file in self.checkpoints}
        self._repeated: set[int] = set()
        self._machine_class: tuple[str, ...] = ()

    def run(self) -> Generator[Message, None, None]:
        """Measure all units, and yield what comes. Raises `UsageError` for nodes that do not fit together, and if all
        have been lost."""
        try:
            yield from self._begin()
            searched = served = time.monotonic()
            while self._queue.has_planned or self._sessions or not self._messages.empty():
                is_served = any(thread.is_alive() for thread in self._threads.values())
                served = time.monotonic() if is_served else served
                if time.monotonic() - served > ABSENCE_S:
                    raise UsageError("all nodes have been lost; the rows so far are saved; continue with --resume")
                if time.monotonic() - searched > SEARCH_S:
                    searched = time.monotonic()
                    self._search()
                with suppress(queue.Empty):
                    message = self._messages.get(timeout=0.2)
                    if isinstance(message, BaseException):
                        raise message
                    yield message
            if repeats := self._queue.pending:
                yield Notice(f"{len(repeats)} groups were not measured on a second node: it has been lost")
        finally:
            self._queue.close()
            for node in list(self._nodes.values()):
                node.remote.stop()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _begin(self) -> Iterator[Notice]:
        """Find the nodes and start to serve those of one class."""
        slots = self._list_slots()
        devices = sorted({unit.device for unit in self.units})
        if len(devices) > 1:  # their places have different machines, as GPUs are hidden from programs without one
            raise UsageError(f"--engine ray: groups of {' and '.join(devices)}; give one --device and another --out")
        if not slots:
            raise UsageError(f"--engine ray: no node offers a place for {devices[0]}; see docs/clusters.md")
        with ThreadPoolExecutor(len(slots)) as pool:
            nodes = list(pool.map(self._open, slots))
        answers = [node for node in nodes if isinstance(node, Node)]
        if not answers:
            raise UsageError(f"no node answers: {next(node for node in nodes if isinstance(node, str))}")
        yield from (Notice(node) for node in nodes if isinstance(node, str))
        selected, others = select_nodes(answers, self.machine)
        self._machine_class = selected[0].machine_class
        for node in others:
            node.remote.stop()
            yield Notice(f"{node.slot} is not used: another machine ({', '.join(node.machine_class)})")
        if self.repeats and len({node.slot.node for node in selected}) > 1:
            self._repeated = choose_repeated(self.units)
        for node in selected:
            if niceness := node.facts["niceness"]:
                remedy = "start Ray there with RAY_worker_niceness=0"
                yield Notice(f"{node.slot}: other programs go before ours (niceness {niceness}); {remedy}")
            self._nodes[node.slot] = node
            self._start(node.slot, self._work, node)

    def _list_slots(self) -> list[Slot]:
        return self.cluster.list_slots(sorted({unit.device for unit in self.units}))

    def _open(self, slot: Slot) -> Node | str:
        """Start the program in a place; or why that failed."""
        try:
            remote = self.cluster.start(slot, PROGRAM)
        except NodeLost as error:
            return f"{slot}: {error}"
        try:
            return Node.describe(slot, remote, self.variables, START_S)
        except NodeLost as error:
            remote.stop()
            return f"{slot}: {error}; another run may use it"
        except Exception as error:
            remote.stop()
            return f"{slot}: {error}"

    def _search(self) -> None:
        """Serve nodes that have joined, if they fit."""
        if self._queue.pending:
            for slot in self._list_slots():
                if slot not in self._threads:
                    self._start(slot, self._join, slot)

    def _join(self, slot: Slot) -> None:
        """In a thread, as a node may take minutes to start."""
        node = self._open(slot)
        fault = node if isinstance(node, str) else node.find_fault()
        if isinstance(node, Node) and not fault and node.machine_class == self._machine_class:
            self._messages.put(Notice(f"{slot} has joined"))
            self._nodes[slot] = node
            self._work(node)
            return
        if isinstance(node, Node):
            node.remote.stop()
            fault = fault or f"another machine ({', '.join(node.machine_class)})"
        self._messages.put(Notice(f"{slot} is not used: {fault}"))

    def _start(self, slot: Slot, function: Callable[..., None], *arguments: Any) -> None:
        self._threads[slot] = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads[slot].start()

    # -- a node's thread -----------------------------------------------------------------------------------------------

    def _work(self, node: Node) -> None:
        """Serve a place until no unit is left, or it is lost for good."""
        losses, slot = 0, node.slot
        try:
            while True:
                entry: Entry | None = None
                try:
                    entry = self._begin_session(node)
                    self._sessions.add(slot)
                    self._messages.put(entry)
                    while (unit := self._queue.take(slot)) is not None:
                        self._measure(node, unit, entry)
                        losses = 0
                    self._messages.put(node.remote.call("end", seconds=BEGIN_S))
                    self._sessions.discard(slot)
                    return
                except NodeLost as loss:
                    losses += 1
                    node.remote.stop()
                    if entry is not None:
                        self._messages.put({**entry, "finished": utc_now(), "lost": str(loss)})
                    self._messages.put(Notice(f"{slot} was lost: {loss}"))
                    self._sessions.discard(slot)
                is_done = self._queue.is_done or self._queue.closed
                if is_done or losses >= MOST_LOSSES or slot not in self._list_slots():
                    return
                opened = self._open(slot)
                if isinstance(opened, str):
                    self._messages.put(Notice(f"{slot} is not used any more: {opened.removeprefix(f'{slot}: ')}"))
                    return
                node = self._nodes[slot] = opened
        except BaseException as error:  # raised in the caller's thread
            if not self._queue.closed:
                self._messages.put(UsageError(f"{slot}: {error}") if isinstance(error, UsageError) else error)

    def _begin_session(self, node: Node) -> Entry:
        """Begin a session. The first node's choices of kernels are those of all."""
        with self._first_choices:  # the others wait
            if not self._choices:
                self._choices.append(self._call_begin(node))
                return self._choices[0]
        return self._call_begin(node)

    def _call_begin(self, node: Node) -> Entry:
        slot = node.slot
        groups = {
            (group.config.device, group.config.dtype, group.config.threads, bool(group.config.mode)): group
            for unit in self.units
            for group, _ in unit.groups
            if unit.device == slot.device
        }
        task = NodeTask(
            name=f"{self._name}-{slot.node[:12]}-{slot.device}{slot.number}",
            settings=replace(self.settings, entry={**self.settings.entry, "node": slot.name}),
            files=self.files,
            groups=list(groups.values()),
            earlier=[*self.earlier, *self._choices],
        )
        return node.remote.call("begin", task, seconds=BEGIN_S)

    def _measure(self, node: Node, unit: Unit, entry: Entry) -> None:
        """Have a node measure a unit. If it is lost, the unit returns, or its remaining cases fail."""
        slot, remaining = node.slot, {case.digest for case in unit.cases}
        needed = Needed(
            [self._records[digest] for digest in unit.needed if digest in self._records],
            [file for file in list(self._files.values()) if file.digest in unit.needed],
        )
        further: list[Unit] = []
        try:
            for message in node.remote.stream("measure", unit, needed, pause_s=PAUSE_S):
                if isinstance(message, Record):
                    digest = digest_of(message.row.case_key)
                    remaining.discard(digest)
                    if digest in unit.needed:
                        self._records[digest] = message
                    self._messages.put(Repeated(message) if unit.is_repeat else message)
                else:
                    self._collect(node)
            if unit.needed:
                self._collect(node)
            further += [unit.repeat(slot.node)] if unit.number in self._repeated and not unit.is_repeat else []
        except NodeLost as loss:
            further += self._retry(unit, remaining, loss, entry)
            raise
        finally:
            self._queue.finish(slot, *further, first=bool(further) and not further[0].is_repeat)

    def _collect(self, node: Node) -> None:
        """Fetch checkpoints, which another node will need if this one is lost."""
        for file in node.remote.call("collect_checkpoints", seconds=self.answer_s):
            self._files[file.name] = file
            self._messages.put(file)

    def _retry(self, unit: Unit, remaining: Collection[str], loss: NodeLost, entry: Entry) -> list[Unit]:
        """What is left of a unit, or nothing if it has ended several nodes: its remaining cases have failed."""
        if not remaining or (unit.losses + 1 >= MOST_LOSSES and unit.is_repeat):
            return []
        if unit.losses + 1 < MOST_LOSSES:
            return [unit.retry(remaining)]
        reason = f"{MOST_LOSSES} nodes were lost while they measured it, the last one: {loss}"
        for case in unit.cases:
            if case.digest in remaining:
                record = make_failure(case, "crashed", reason)
                record.row.run_id, record.row.machine = entry["run_id"], entry["environment"]["machine"]
                self._messages.put(record)
        return []
