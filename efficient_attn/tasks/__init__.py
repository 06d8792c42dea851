"""Tasks by which mechanisms are evaluated, a file each. Besides its file a new one only needs an entry in this table.

Authors of tasks in their own files can import everything that a task consists of from here.
"""

import warnings
from typing import Any

from ..bench.case_config import CaseConfig, Group, Sampling
from ..bench.planning.request import AxisGrid, TaskRequest
from ..bench.task import Guess, Keys, Task
from ..bench.task_registry import register_task
from ..results.rows import Record, Row
from ..results.section import Column, Section

PROBLEMS = ("mqar", "induction", "copying", "selective_copying", "listops")
PROBLEMS += ("parity", "s3", "s5", "reversal", "sorting", "dates", "pronunciation")
PROBLEMS += ("digits", "patches", "pathfinder", "cifar10", "matching", "imdb", "lm")
TABLE = {
    "speed": "efficient_attn.tasks.speed:SPEED",
    "fidelity": "efficient_attn.tasks.fidelity.fidelity_task:FIDELITY",
    "swap": "efficient_attn.tasks.swap:SWAP",
    "retrieval": "efficient_attn.tasks.retrieval:RETRIEVAL",
    "hybrid": "efficient_attn.tasks.hybrid.hybrid_task:HYBRID",
    "complexity": "efficient_attn.tasks.complexity.complexity_task:COMPLEXITY",
    "longest": "efficient_attn.tasks.complexity.longest:LONGEST",
    "distributed": "efficient_attn.tasks.distributed.distributed_task:DISTRIBUTED",
    **{name: f"efficient_attn.tasks.problems.problem_table:{name.upper()}" for name in PROBLEMS},
}

__all__ = [
    "TABLE",
    "AxisGrid",
    "CaseConfig",
    "Column",
    "Group",
    "Guess",
    "Keys",
    "Record",
    "Row",
    "Sampling",
    "Section",
    "Task",
    "TaskRequest",
    "register_task",
]

_DEPRECATED = {"Asked": "TaskRequest", "Cell": "Group", "Effort": "Sampling", "Grid": "AxisGrid", "Place": "CaseConfig"}


def __getattr__(name: str) -> Any:
    """The names of version 0.1, which version 0.3 removes."""
    if name not in _DEPRECATED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _DEPRECATED[name]
    warnings.warn(f"efficient_attn.tasks.{name} is now {new}; version 0.3 removes {name}", DeprecationWarning, 2)
    return globals()[new]
