"""Overridden runs: sessions that changed their suite, for example with fewer rounds or other lengths."""

from collections.abc import Iterable, Mapping
from typing import Any

OVERRIDES_KEY = "trial"  # of a session in run.json: its overrides, as on the command line; empty for none


def gather_overrides(sessions: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The overrides of sessions, each once: ``("--quick", "--seq-len 64,128")``."""
    lists = (session.get(OVERRIDES_KEY) for session in sessions)
    return tuple(dict.fromkeys(str(item) for overrides in lists if isinstance(overrides, list) for item in overrides))
