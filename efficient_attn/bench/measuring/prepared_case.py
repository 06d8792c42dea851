"""A case that is ready to be timed, and the stages of a case in a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...instruments.timing import SampleCost
from ...results.rows import Row

STAGES = (
    "its inputs were made",
    "it was compiled",
    "its first call ran",
    "it was compared with its reference",
    "its memory was counted",
    "it was calibrated",
    "it was timed",
    "it was evaluated",
)
MAKING_INPUTS, COMPILING, FIRST_CALL, VERIFYING, COUNTING_MEMORY, CALIBRATING, TIMING, EVALUATING = range(len(STAGES))

MIN_EXCESS_SHARE, MIN_EXCESS_BYTES = 0.2, 16 * 2**20  # of memory, beyond which differences are reported


@dataclass
class PreparedCase:
    """A verified case: its row so far, and the cost of a sample, from which rounds are planned. measures_process:
    whether its memory is also measured in a new process."""

    row: Row
    cost: SampleCost
    samples: dict[str, Any] = field(default_factory=dict)
    measures_process: bool = False


def add_reason(row: Row, reason: str | None) -> None:
    """Add a sentence to the row's reason, if there is one."""
    row.reason = "; ".join(filter(None, (row.reason, reason))) or None


def is_much_more(measured: int | None, counted: int | None) -> bool:
    """Whether memory exceeds what was counted by so much that a row says so."""
    if measured is None or counted is None:
        return False
    return measured - counted > max(MIN_EXCESS_SHARE * counted, MIN_EXCESS_BYTES)
