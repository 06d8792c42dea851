"""The ledger: a TOML file a source, each claim with its rule, and the rule's hash, so that none changes unseen."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...bench.planning.validation import format_problem
from ...errors import UsageError, unknown
from .row_query import Number, Query, Range, check_columns, check_conditions, find_bounds

LEDGER_FOLDER = Path(__file__).parent
MAX_COUNTED = 3  # claims of one mechanism and source that count towards figures


class _LedgerModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClaimRule(_LedgerModel):
    """What is compared with what. value: a column. against: in which columns the rows differ that it is divided by; all
    else they share. over: a column; compared is the exponent with which the value grows along it.
    across: what may differ along it beside that column. interval: the two columns that hold the value's 95% interval,
    where they are not called as the value is. how: ``every``, if each row must hold to it, or ``typical``, if their
    geometric mean must.
    """

    value: str
    against: Query = {}
    over: str | None = None
    across: tuple[str, ...] = ()
    interval: tuple[str, str] | None = None
    how: Literal["every", "typical"] = "every"
    at_least: Number | None = None
    at_most: Number | None = None
    between: tuple[Number, Number] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """Between what the value must lie; either may be infinite."""
        low, high = self.between or (self.at_least, self.at_most)
        return -math.inf if low is None else low, math.inf if high is None else high

    @model_validator(mode="after")
    def _validate_bounds(self) -> Self:
        if self.between and (self.at_least, self.at_most) != (None, None):
            raise ValueError("between cannot be combined with at_least or at_most")
        low, high = find_bounds(self.value)
        if self.over:
            low, high = -math.inf, math.inf
        elif self.against:
            high = math.inf
        least, most = self.bounds
        if least > most:
            raise ValueError(f"the rule can never hold: nothing is at least {least:g} and at most {most:g}")
        description = f"{'what is compared' if self.over or self.against else self.value} lies from {low:g} to {high:g}"
        if least <= low and high <= most:
            raise ValueError(f"the rule can never fail: {description} in any case")
        if most < low or high < least:
            raise ValueError(f"the rule can never hold: {description} in any case")
        return self


class Claim(_LedgerModel):
    """What a source says, in our own words, and how rows put it to the test.

    says: its figures as published. regime: what rows must meet so that it speaks of them. rows: which test it.
    run: the command that measures such rows. date: when the rule was made; a day stands for its end. hash: of the
    rule, with the id, the date and what rows it asks for.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    mechanism: str
    claim: str
    says: str
    rows: Query
    regime: Query = {}
    rule: ClaimRule
    run: str
    date: dt.datetime | dt.date
    hash: str = ""

    @model_validator(mode="after")
    def _validate_columns(self) -> Self:
        for query in (self.rows, self.regime, self.rule.against):
            check_columns(query)
            check_conditions(query)
        check_columns(self.columns)
        if not self.rows:
            raise ValueError("rows must name at least one column, otherwise every row matches")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """All that it asks of rows."""
        rule = self.rule
        names = (rule.value, *self.rows, *self.regime, *rule.against, *rule.across, *(rule.interval or ()))
        return (*names, rule.over) if rule.over else names

    @property
    def created_at(self) -> dt.datetime:
        if isinstance(self.date, dt.datetime):
            return self.date if self.date.tzinfo else self.date.replace(tzinfo=dt.UTC)
        return dt.datetime.combine(self.date + dt.timedelta(days=1), dt.time(), dt.UTC)

    @property
    def expected_hash(self) -> str:
        payload = {"id": self.id, "date": self.date.isoformat()}
        payload |= self.model_dump(mode="json", include={"rows", "regime", "rule"}, exclude_defaults=True)
        return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:12]


class ClaimSource(_LedgerModel):
    """A paper, textbook or library, and its claims. name: the file's. cite: how it is named where there is no room.
    checked: what was found when its figures were looked up, and what they are of."""

    title: str
    cite: str
    kind: Literal["paper", "textbook", "library"]
    url: str = ""
    checked: str = ""
    claim: tuple[Claim, ...] = Field(min_length=1)


@dataclass(frozen=True)
class LedgerEntry:
    """A claim beside its source. counts: whether it is one of its mechanism's and source's first three."""

    file: str
    source: ClaimSource
    claim: Claim
    counts: bool


def load_ledger(files: Sequence[Path] = ()) -> list[LedgerEntry]:
    """All claims of these files, or of the ledger that comes with the package. `UsageError` for the first mistake,
    such as a rule that is not the one that its hash stands for."""
    sources = {str(file): read_source(file) for file in files or sorted(LEDGER_FOLDER.glob("*.toml"))}
    entries: list[LedgerEntry] = []
    for file, source in sources.items():
        if wrong_claims := list_wrong_hashes(source):
            raise UsageError(f"{file}: {format_wrong_hash(wrong_claims[0])}")
        counts = Counter[str]()
        for claim in source.claim:
            counts[claim.mechanism] += 1
            entries.append(LedgerEntry(Path(file).stem, source, claim, counts[claim.mechanism] <= MAX_COUNTED))
    _check_unique((entry.claim.id for entry in entries), "the claims")
    return entries


def read_source(file: Path) -> ClaimSource:
    """A file's claims; their hashes may be wrong."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not valid TOML: {error}") from error
    try:
        source = ClaimSource.model_validate(document)
    except ValidationError as error:
        raise format_problem(str(file), error, _list_keys) from error
    _check_unique((claim.id for claim in source.claim), str(file))
    return source


def check_task_columns(claim: Claim, known_columns: Iterable[str], file: str) -> None:
    """`UsageError` for a column that no task adds. known: those that some do, of a family as ``train.at_*``."""
    names = [*known_columns]
    for column in claim.columns:
        if "." in column and not any(fnmatchcase(column, name) for name in names):
            raise unknown("column", column, names, where=f"{file}: claim {claim.id!r}")


def list_wrong_hashes(source: ClaimSource) -> list[Claim]:
    """The claims whose hash stands for another rule."""
    return [claim for claim in source.claim if claim.hash != claim.expected_hash]


def format_wrong_hash(claim: Claim) -> str:
    """What to do about it."""
    problem = "has no hash" if not claim.hash else "has a rule that does not match its hash"
    advice = "" if not claim.hash else "give it a new id and date, then "
    return f"claim {claim.id!r} {problem}; {advice}use the hash that `efficient-attn claims --check` prints"


def _check_unique(ids: Iterable[str], where: str) -> None:
    repeated = [name for name, count in Counter(ids).items() if count > 1]
    if repeated:
        raise UsageError(f"{where}: duplicate id {repeated[0]!r}")


def _list_keys(table: list[int | str]) -> list[str]:
    if {"rows", "regime", "against"} & {*table[:-1]}:
        return [*Range.model_fields]
    models: dict[Any, type[BaseModel]] = {"claim": Claim, "rule": ClaimRule}
    model = next((models[name] for name in reversed(table) if name in models), ClaimSource)
    return [*model.model_fields]
