"""Tasks: what mechanisms are judged by, a file each. This table is all that a new one needs besides its file.

For authors of tasks in files of their own, everything that a task is made of can be imported from here.
"""

from ..bench.config import Cell, Effort, Place
from ..bench.planning.request import Asked, Grid
from ..bench.task import Guess, Keys, Task
from ..bench.task_registry import register_task
from ..results.rows import Record, Row
from ..results.section import Column, Section

TABLE = {
    "speed": "efficient_attn.tasks.speed:SPEED",
    "fidelity": "efficient_attn.tasks.fidelity.fidelity_task:FIDELITY",
    "swap": "efficient_attn.tasks.swap:SWAP",
    "retrieval": "efficient_attn.tasks.retrieval:RETRIEVAL",
    "complexity": "efficient_attn.tasks.complexity.complexity_task:COMPLEXITY",
    "longest": "efficient_attn.tasks.complexity.longest:LONGEST",
    "mqar": "efficient_attn.tasks.problems.problem_table:MQAR",
    "induction": "efficient_attn.tasks.problems.problem_table:INDUCTION",
    "copying": "efficient_attn.tasks.problems.problem_table:COPYING",
    "selective_copying": "efficient_attn.tasks.problems.problem_table:SELECTIVE_COPYING",
    "listops": "efficient_attn.tasks.problems.problem_table:LISTOPS",
    "reversal": "efficient_attn.tasks.problems.problem_table:REVERSAL",
    "sorting": "efficient_attn.tasks.problems.problem_table:SORTING",
    "dates": "efficient_attn.tasks.problems.problem_table:DATES",
    "digits": "efficient_attn.tasks.problems.problem_table:DIGITS",
    "patches": "efficient_attn.tasks.problems.problem_table:PATCHES",
    "lm": "efficient_attn.tasks.problems.problem_table:LM",
}

__all__ = [
    "TABLE",
    "Asked",
    "Cell",
    "Column",
    "Effort",
    "Grid",
    "Guess",
    "Keys",
    "Place",
    "Record",
    "Row",
    "Section",
    "Task",
    "register_task",
]
