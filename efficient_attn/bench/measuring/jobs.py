"""Worker jobs: prepare a group's cases, and measure the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from ...engines.descendants import end_leftovers
from ...engines.job import StageBoard
from ...engines.worker import limit_memory
from ...errors import NotInstalled, NotNeeded, UnsupportedError, is_out_of_memory
from ...instruments import integrity
from ...instruments.disturbance import DisturbanceWatch
from ...instruments.global_state import GlobalStateChanged
from ...instruments.memory import verify_memory_counter
from ...instruments.roofline import measure_roofline_rates
from ...instruments.thread_watch import ThreadWatch
from ...instruments.timing import TooSlow
from ...results.rows import Record, Row, Status
from ..case import Case
from ..case_config import Group
from ..task import Task
from ..task_registry import find_task
from . import kernel_choices, scratch
from .prepared_case import EVALUATING, MAKING_INPUTS, PreparedCase, add_reason
from .row_errors import InvalidResult
from .turn_guard import guard_creation

INSPECTION_LIMIT_S = 300.0  # for measuring the machine


@dataclass(frozen=True, kw_only=True)
class PrepareCases:
    """Prepare each case for timing, or make its record if it fails or is not timed. Sends it with the case's index.

    It ends after a case that leaves a thread at work, which would disturb the others, or a GPU that answers no more.
    jobs: how many workers there are at the same time, at most.
    """

    group: Group
    cases: tuple[Case, ...]
    timeout_s: float
    memory_bytes: int | None
    choices: kernel_choices.Choices = field(default_factory=dict)
    folder: Path | None = None
    jobs: int = 1

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Prepare the cases one after another."""
        set_threads(self.group)
        kernel_choices.apply_choices(self.choices)
        scratch.set_folder(self.folder, jobs=self.jobs)
        task, threads = find_task(self.group.target), ThreadWatch(single_thread=torch.get_num_threads() == 1)
        for index, case in enumerate(self.cases):
            start = time.perf_counter()
            report_stage = partial(self._report_stage, board, index, time.monotonic() + self.timeout_s)
            report_stage(MAKING_INPUTS)
            limit_memory(self.memory_bytes, self.group.config.device)
            case = replace(case, keys_model=task.keys)
            outcome = self._evaluate(task, case, report_stage)
            left = end_leftovers()
            disturbing = threads.observe_remaining(index)
            if disturbing and (isinstance(outcome, PreparedCase) or outcome.row.status == "ok"):
                outcome = _make_failed_record(case.row(), GlobalStateChanged(disturbing))
            if left:
                names = ", ".join(dict.fromkeys(left))
                add_reason(outcome.row, f"it left {len(left)} process{'es' if len(left) > 1 else ''} running: {names}")
            if isinstance(outcome, PreparedCase):
                outcome.seconds = time.perf_counter() - start
                outcome.timed = kernel_choices.list_timed()
            send((index, outcome))
            if disturbing or not answers(case.group.config.device):
                return

    @staticmethod
    def _report_stage(board: StageBoard, case: int, deadline: float, stage: int, limit_s: float | None = None) -> None:
        left = deadline - time.monotonic()
        board.set_stage(case, stage, left if limit_s is None else min(limit_s, left))

    @staticmethod
    def _evaluate(task: Task, case: Case, report_stage: Callable[..., None]) -> PreparedCase | Record:
        row = case.row()
        row.threads = torch.get_num_threads()
        try:
            report_stage(EVALUATING)
            with guard_creation(case):
                outcome = task.judge(case, row, report_stage)
            if undeclared := sorted(name for name in outcome.row.extra if not task.declares(name)):
                raise ValueError(f"the task {task.name} declares no column {undeclared[0]!r}")
        except Exception as error:
            return _make_failed_record(row, error)
        try:
            Record(outcome.row, outcome.samples).to_line()
        except (TypeError, ValueError) as error:  # a value that JSON cannot store fails this case, not the run
            return _make_failed_record(case.row(), error)
        return outcome


@dataclass(frozen=True, kw_only=True)
class InspectMachine:
    """Measure the machine's highest rates. canary: also check the memory counter.

    Sends the counted bytes, a roofline for each setting, and the disturbance meanwhile.
    """

    device: str
    settings: tuple[tuple[str, int | None], ...]  # dtype and threads
    canary: bool

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Measure the rates for each dtype and number of threads."""
        board.set_stage(0, MAKING_INPUTS, INSPECTION_LIMIT_S)
        if self.canary:
            send(verify_memory_counter(self.device))
        default, watch = _default_threads(), DisturbanceWatch()
        for dtype, threads in self.settings:
            send((dtype, threads, measure_roofline_rates(self.device, dtype, threads or default)))
        send(watch.read_interval())


def set_threads(group: Group) -> int:
    """Set the group's number of threads, or the default one, and return it."""
    # read first: if jobs share a process, the setting of one must not become the default of the next
    default = _default_threads()
    if group.config.device == "cuda" and torch.cuda.is_available():
        torch.cuda.init()  # so that no mechanism's first call changes what torch sets with it
    torch.set_num_threads(group.config.threads or default)
    return torch.get_num_threads()


@cache
def _default_threads() -> int:
    return torch.get_num_threads()


# -- failures ------------------------------------------------------------------------------------------------------


def classify_error(error: BaseException) -> tuple[Status, str]:
    """The status and the reason of a case that raised an exception."""
    if isinstance(error, NotInstalled | NotNeeded):
        return "skipped", str(error)
    if isinstance(error, UnsupportedError):
        return "unsupported", str(error)
    if isinstance(error, InvalidResult | GlobalStateChanged):
        return "invalid", str(error)
    if isinstance(error, TooSlow):
        return "timeout", str(error)
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
    return "oom" if is_out_of_memory(error) else "error", text


def answers(device: str) -> bool:
    """Whether the device still works in this process. It does not after an error in a kernel, such as an assertion."""
    if device != "cuda" or not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _make_failed_record(row: Row, error: BaseException) -> Record:
    """The record of a case that raised an exception, without the columns of its task unless it is skipped."""
    row.status, row.reason = classify_error(error)
    row.extra = row.extra if row.status == "skipped" else {}
    if row.device == "cuda" and row.status == "oom":
        torch.cuda.empty_cache()
    return Record(row)


integrity.record_integrity()  # workers import this module before they load plug-ins
