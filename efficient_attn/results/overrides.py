"""Overridden runs: sessions that changed their suite, for example with fewer rounds or other lengths."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

OVERRIDES_KEY = "trial"  # of a session in run.json: its overrides, as on the command line; empty for none
# options that do not change what is measured
IGNORED_FLAGS = ("--out", "--plugin", "--timeout", "--memory-limit", "--start-method")
IGNORED_FLAGS += ("--json", "--resume", "--retry-failed")


def list_overrides(session: Mapping[str, Any]) -> tuple[str, ...]:
    """The overrides of a session, ``("--quick", "--seq-len 64,128")``; of an older one, from its command."""
    overrides = session.get(OVERRIDES_KEY)
    if isinstance(overrides, list):
        return tuple(map(str, overrides))
    command = session.get("command") or []
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    return tuple(_read_options(words[2:])) if words[1:2] == ["run"] else ()


def gather_overrides(sessions: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The overrides of all sessions of a run, each once."""
    return tuple(dict.fromkeys(override for session in sessions for override in list_overrides(session)))


def _read_options(words: list[str]) -> Iterable[str]:
    """The options with their values, without the ignored ones."""
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    for start, end in pairwise([*starts, len(words)]):
        flag, _, value = words[start].partition("=")
        values = [value] if value else words[start + 1 : end]
        if flag not in IGNORED_FLAGS:
            yield " ".join([flag, *([] if flag == "--quick" else values)])
