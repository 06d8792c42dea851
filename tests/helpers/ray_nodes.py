"""A Ray cluster of simulated nodes: several on this machine, each with a place for measurements."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from efficient_attn.engines.ray import RESOURCE


@dataclass
class RayNodes:
    """A cluster. address: of its head, which measures nothing."""

    cluster: Any
    nodes: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **options: Any) -> Any:
        """A further node."""
        node = self.cluster.add_node(
            num_cpus=0, num_gpus=0, resources={RESOURCE: 1}, object_store_memory=80 * 2**20, **options
        )
        self.nodes.append(node)
        return node

    def list_processes(self, node: Any) -> list[int]:
        """The ids of a node's raylet and of all its descendants."""
        raylets = [info.process.pid for infos in node.all_processes.values() for info in infos]
        lines = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        parents = {int(pid): int(parent) for pid, parent in (line.split() for line in lines.splitlines())}
        members = set(raylets)
        while further := {pid for pid, parent in parents.items() if parent in members} - members:
            members |= further
        return sorted(members)

    def is_alive(self, node: Any) -> bool:
        """Whether its raylet runs."""
        return node.any_processes_alive() and not node.dead_processes()

    def list_programs(self) -> list[int]:
        """The ids of the workers that run our program, on all nodes."""
        lines = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
        return [int(line.split()[0]) for line in lines.splitlines() if "ray::NodeProgram" in line]


@contextmanager
def start_nodes(count: int) -> Iterator[RayNodes]:
    """A head and so many nodes."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = RayNodes(cluster)
        for _ in range(count):
            nodes.add()
        yield nodes
    finally:
        cluster.shutdown()


if __name__ == "__main__":  # for other processes: print the address, and end with standard input
    with start_nodes(int(sys.argv[1])) as started:
        print(started.address, flush=True)
        sys.stdin.read()
