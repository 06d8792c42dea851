"""Clusters: machines on which a program of ours runs for as long as a run lasts, and answers calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class NodeLost(Exception):
    """A node, or the worker on it, has ended or does not answer."""


@dataclass(frozen=True)
class Slot:
    """A place for one program, which has a device for itself. node: an id; name: for people; number: of a GPU."""

    node: str
    name: str
    device: str
    number: int = 0

    def __str__(self) -> str:
        return self.name if self.device == "cpu" else f"{self.name}, GPU {self.number}"


class Remote(Protocol):
    """A program on a node. Its exceptions are raised here; `NodeLost` if there is no answer."""

    def call(self, method: str, *arguments: Any, seconds: float) -> Any:
        """The result of a method, which has to come in this time."""
        ...

    def stream(self, method: str, *arguments: Any, pause_s: float) -> Iterator[Any]:
        """What a generator yields, as it comes; None whenever nothing has come for this time."""
        ...

    def stop(self) -> None:
        """End the program, at once."""
        ...


class Cluster(Protocol):
    """Machines that are connected, of which some may leave or join."""

    def list_slots(self, devices: Sequence[str]) -> list[Slot]:
        """The places of all nodes that are there now."""
        ...

    def start(self, slot: Slot, program: str) -> Remote:
        """Start a program, ``module:class``, in a place that is free, or becomes free."""
        ...

    def close(self) -> None:
        """Disconnect, and end what was started."""
        ...
