"""The protocol by which a run was measured, from its ``run.json``. `bench.case.PROTOCOL` is the present one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

FIRST_CURRENT = 4  # times of earlier protocols are not compared with present ones


def find_protocol(sessions: Iterable[Mapping[str, Any]]) -> int | None:
    """The earliest protocol of a run's sessions; None if none is recorded."""
    return min((p for session in sessions if isinstance(p := session.get("protocol"), int)), default=None)


def is_older(protocol: int | None) -> bool:
    """Whether rows of this protocol are marked, and left out of tables of present ones."""
    return protocol is not None and protocol < FIRST_CURRENT


def describe_older(sessions: Iterable[Mapping[str, Any]]) -> str:
    """``protocol 2, older code`` for a run of an earlier protocol, else nothing."""
    protocol = find_protocol(sessions)
    return f"protocol {protocol}, older code" if is_older(protocol) else ""
