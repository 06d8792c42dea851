"""Overridden runs: sessions that changed their suite, for example with fewer rounds or other lengths."""

from collections.abc import Iterable, Mapping
from typing import Any

OVERRIDES_KEY = "trial"  # of a session in run.json: its overrides, as on the command line; empty for none


def list_overrides(session: Mapping[str, Any]) -> tuple[str, ...]:
    """The overrides of a session, ``("--quick", "--seq-len 64,128")``."""
    overrides = session.get(OVERRIDES_KEY)
    return tuple(map(str, overrides)) if isinstance(overrides, list) else ()


def gather_overrides(sessions: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The overrides of all sessions of a run, each once."""
    return tuple(dict.fromkeys(override for session in sessions for override in list_overrides(session)))
