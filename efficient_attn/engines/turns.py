"""Turns of two runs on one machine, so that their process runs alternate and differ only in what they measure.

Before each step a run writes its position to a socket, as a line ``group step``, and waits for a byte. The coordinator
(`.github/actions/compare/compare_revisions.py`) answers one run at a time: the one that is behind.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import UsageError


@dataclass
class Turns:
    """The turns of a run. socket: an inherited file descriptor; None if the run is alone and never waits."""

    socket: int | None = None
    group: int = -1
    step: int = 0

    def start_group(self) -> None:
        """Wait until the next group may be prepared; after the last one, until the run may finish."""
        self.group, self.step = self.group + 1, 0
        self.wait()

    def start_process_run(self) -> None:
        """Wait until the next process run of the group may start."""
        self.step += 1
        self.wait()

    def wait(self) -> None:
        """Wait for the turn. Raises `UsageError` if there is no coordinator, or if it ended."""
        if self.socket is None:
            return
        try:
            os.write(self.socket, f"{self.group} {self.step}\n".encode())
            answer = os.read(self.socket, 1)
        except OSError as error:
            raise UsageError(f"--turns {self.socket}: not an open socket: {error.strerror}") from error
        if not answer:
            raise UsageError(f"--turns {self.socket}: the coordinator ended; continue without --turns by --resume")
