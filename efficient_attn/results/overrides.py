"""Trials: sessions that ran something else than their suite says, in fewer rounds or of other lengths, say."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

OVERRIDES_KEY = "trial"  # of a session in run.json: what was overridden, as the command line has it; empty for none
# what the command line may say without changing what is measured
IGNORED_FLAGS = (
    "--out",
    "--plugin",
    "--timeout",
    "--memory-limit",
    "--start-method",
    "--json",
    "--resume",
    "--retry-failed",
)


def list_overrides(session: Mapping[str, Any]) -> tuple[str, ...]:
    """What a session changed in its suite, ``("--quick", "--seq-len 64,128")``; of an older one by its command."""
    overrides = session.get(OVERRIDES_KEY)
    if isinstance(overrides, list):
        return tuple(map(str, overrides))
    command = session.get("command") or []
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    return tuple(_read_options(words[2:])) if words[1:2] == ["run"] else ()


def gather_overrides(sessions: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """What any session of a run changed, each change once."""
    return tuple(dict.fromkeys(override for session in sessions for override in list_overrides(session)))


def _read_options(words: list[str]) -> Iterable[str]:
    """The options, each with its value, less those that change nothing."""
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    for start, end in pairwise([*starts, len(words)]):
        flag, _, value = words[start].partition("=")
        values = [value] if value else words[start + 1 : end]
        if flag not in IGNORED_FLAGS:
            yield " ".join([flag, *([] if flag == "--quick" else values)])
