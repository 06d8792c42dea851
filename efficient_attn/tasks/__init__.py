"""Tasks: what mechanisms are judged by, a file each. This table is all that a new one needs besides its file.

For authors of tasks in files of their own, everything that a task is made of can be imported from here.
"""

from ..bench.asked import Asked, Grid
from ..bench.place import Cell, Effort, Place
from ..bench.tables import register_task
from ..bench.task import Guess, Keys, Task
from ..results.rows import Record, Row
from ..results.section import Column, Section

TABLE = {
    "speed": "efficient_attn.tasks.speed:SPEED",
    "fidelity": "efficient_attn.tasks.fidelity:FIDELITY",
    "swap": "efficient_attn.tasks.swap:SWAP",
    "retrieval": "efficient_attn.tasks.retrieval:RETRIEVAL",
    "complexity": "efficient_attn.tasks.complexity:COMPLEXITY",
    "longest": "efficient_attn.tasks.longest:LONGEST",
    "mqar": "efficient_attn.tasks.abilities:MQAR",
    "induction": "efficient_attn.tasks.abilities:INDUCTION",
    "copying": "efficient_attn.tasks.abilities:COPYING",
    "selective_copying": "efficient_attn.tasks.abilities:SELECTIVE_COPYING",
    "listops": "efficient_attn.tasks.abilities:LISTOPS",
    "reversal": "efficient_attn.tasks.abilities:REVERSAL",
    "sorting": "efficient_attn.tasks.abilities:SORTING",
    "dates": "efficient_attn.tasks.abilities:DATES",
    "digits": "efficient_attn.tasks.abilities:DIGITS",
    "patches": "efficient_attn.tasks.abilities:PATCHES",
    "lm": "efficient_attn.tasks.abilities:LM",
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
