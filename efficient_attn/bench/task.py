"""A task, by which mechanisms are evaluated, as a value. bench/ accesses tasks only through it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict

from ..results.rows import Record, Row
from ..results.section import Section
from .case_config import Group

if TYPE_CHECKING:
    from ..instruments.roofline import Roofline
    from .case import Case
    from .measuring.prepared_case import PreparedCase
    from .measuring.workload import Workload
    from .planning.request import TaskRequest


class Keys(BaseModel):
    """A task's keys in a part of a suite. A field with ``exclude=True`` is not part of a case's identity."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Guess(NamedTuple):
    """The estimated cost of a case: seconds a call, bytes of its inputs, and bytes that a call (in decoding, its state)
    needs.

    compile_s: seconds before the first call, in every worker.
    """

    call_s: float
    input_bytes: int
    call_bytes: int
    compile_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """words: the names in a suite's ``measure`` that select it. plan: the groups, each with its number of key-value
    heads.

    judge: evaluates a case in a worker and returns its record, or calibrates it if it is timed interleaved with others;
    it reports its stages. work: what is timed then. chain: for tasks that time nothing, whose cases may be evaluated at
    the same time (``run --jobs``): cases with an equal value are not, because later ones read the rows of earlier ones.
    together: for other tasks whose cases read the rows of earlier ones: cases with an equal value are measured on one
    machine, in order. guess: the cost, from the machine's rates. mechanisms: whether it uses variants. blocks: whether
    it also evaluates layers, including baselines; it then plans groups of them if `TaskRequest.blocks` is set. home: a
    function of its file, if ``plan`` is not. columns: what it adds to rows (`Row.extra`, ``task.column`` in frames),
    each with a sentence; a name with a dot is complete, and one that ends in ``*`` is a prefix.
    """

    name: str
    words: tuple[str, ...]
    plan: Callable[[TaskRequest], Iterable[tuple[Group, int | None]]]
    judge: Callable[[Case, Row, Callable[..., None]], Record | PreparedCase]
    guess: Callable[[Case, Roofline], Guess]
    keys: type[Keys] = Keys
    work: Callable[[Case], Workload] | None = None
    chain: Callable[[Case], Hashable] | None = None
    together: Callable[[Case], Hashable] | None = None
    mechanisms: bool = True
    blocks: bool = False
    home: Callable[..., object] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()

    def __post_init__(self) -> None:
        if self.work is not None and self.chain is not None:
            raise ValueError(f"the task {self.name} times its cases, so they cannot be evaluated at the same time")

    @property
    def source(self) -> Callable[..., object]:
        """A function of the file that it is written in."""
        return self.home or self.plan

    def declares(self, name: str) -> bool:
        """Whether a column is one of those that it adds."""
        return any(fnmatchcase(name, column) for column in self.columns)
