"""A task: what mechanisms are judged by, as a value. bench/ knows tasks only through this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    """A task's keys of a suite's part. A field with ``exclude=True`` does not tell one case from another."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Guess(NamedTuple):
    """What a case costs: seconds a call, bytes of its inputs, bytes that a call (in decoding, its state) takes.

    compile_s: seconds before the first call, in every worker.
    """

    call_s: float
    input_bytes: int
    call_bytes: int
    compile_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """words: of a suite's ``measure`` that ask for it. plan: the cells, each with its number of key-value heads.

    judge: in a worker, takes a case to its record, or, where it is timed in turns with others, to a pace; it says
    what it is at. work: what is timed then. guess: the cost, given the machine's rates. mechanisms: whether it takes
    variants. blocks: whether it takes layers too, baselines among them; it then plans cells of them where
    `Asked.blocks` says that there are any. home: a function of its file, where ``plan`` is none. columns: what it
    adds to rows (`Row.extra`, ``task.column`` in frames), with a sentence each; a name that has a dot is whole, and
    one that ends in ``*`` stands for all that begin like it.
    """

    name: str
    words: tuple[str, ...]
    plan: Callable[[TaskRequest], Iterable[tuple[Group, int | None]]]
    judge: Callable[[Case, Row, Callable[..., None]], Record | PreparedCase]
    guess: Callable[[Case, Roofline], Guess]
    keys: type[Keys] = Keys
    work: Callable[[Case], Workload] | None = None
    mechanisms: bool = True
    blocks: bool = False
    home: Callable[..., object] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()

    @property
    def source(self) -> Callable[..., object]:
        """A function of the file that it is written in."""
        return self.home or self.plan

    def declares(self, name: str) -> bool:
        """Whether a column is among those that it adds."""
        return any(fnmatchcase(name, column) for column in self.columns)
