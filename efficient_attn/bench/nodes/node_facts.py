"""Which nodes may measure together: of one version and one class of machines, with equal clocks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ...engines.cluster import Remote, Slot
from ...errors import UsageError
from ...results.merging import SAME_IN_FOLDER
from ..sources import digest_package

MOST_CLOCK_DIFFERENCE_S = 5.0


@dataclass(frozen=True)
class Node:
    """A program in a place, with the facts of its machine. clock_s: by how much its clock is ahead of ours."""

    slot: Slot
    remote: Remote
    facts: Mapping[str, Any]
    clock_s: float

    @classmethod
    def describe(cls, slot: Slot, remote: Remote, variables: Mapping[str, str | None], seconds: float) -> Node:
        """Ask a program for its facts."""
        before = time.time()
        facts = remote.call("describe", variables, seconds=seconds)
        after = time.time()
        return cls(slot, remote, facts, max(before - facts["time_s"], facts["time_s"] - after, 0.0))

    @property
    def machine_class(self) -> tuple[str, ...]:
        """Machine and versions of torch and of GPU libraries, which may not differ within a run."""
        facts = (self.facts["environment"].get(name) for name in SAME_IN_FOLDER)
        return tuple(str(fact) for fact in facts if fact is not None)

    def find_fault(self) -> str | None:
        """Why it cannot measure for this process, or None."""
        here = {"version": version("efficient-attn"), "sources": digest_package()}
        for name, label in (("version", "version"), ("sources", "the digest of the sources is")):
            if self.facts[name] != here[name]:
                return f"{label} {self.facts[name]}, here {here[name]}; install the same version on all nodes"
        if self.clock_s > MOST_CLOCK_DIFFERENCE_S:
            return f"its clock differs by {self.clock_s:.0f} s; synchronize the clocks"
        return None


def select_nodes(nodes: Sequence[Node], machine: str | None) -> tuple[list[Node], list[Node]]:
    """The nodes of one class, of ``machine`` if it is given, else of the class with most; and the others. Raises
    `UsageError` for nodes that have a fault, by name, and if there is none of the machine."""
    if faults := [f"{node.slot}: {fault}" for node in nodes if (fault := node.find_fault())]:
        more = f" (and {len(faults) - 1} other nodes)" if len(faults) > 1 else ""
        raise UsageError(f"{faults[0]}{more}")
    candidates = [node for node in nodes if machine in (None, *_list_names(node))]
    if not candidates:
        machines = ", ".join(sorted({node.machine_class[0] for node in nodes}))
        raise UsageError(f"no node of the class {machine}; there are {machines}")
    counts = Counter(node.machine_class for node in candidates)
    best = max(counts, key=lambda name: (counts[name], name))
    return [n for n in candidates if n.machine_class == best], [n for n in nodes if n.machine_class != best]


def _list_names(node: Node) -> tuple[str, str]:
    """The names of a node's class: with and without the digest."""
    machine = node.machine_class[0]
    return machine, machine.partition("#")[0]
