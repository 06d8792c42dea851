"""The ledger of claims: one TOML file per source; each claim has a rule and its hash, which detects changed rules."""

import datetime as dt
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...bench.planning.suite_schema import format_problem
from ...errors import UsageError, make_unknown_error
from ...resources import parse_toml, read_toml
from .row_query import Number, Query, Range, check_columns, check_conditions, find_bounds

ClaimGroup = Literal["published", "arithmetic", "from memory"]
LEDGER_FOLDER = Path(__file__).parent
MAX_COUNTED = 3  # counted claims per mechanism and source


class _LedgerModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClaimRule(_LedgerModel):
    """The test of a claim. value: a column. against: the value is divided by that of rows with these values and
    otherwise equal columns. over: a column; the exponent of the value's growth along it is tested. across: further
    columns that may vary along it. interval: the two columns of the value's 95% interval, if not named after the value.
    how: whether ``every`` row must satisfy the bounds, or the ``typical`` one, their geometric mean.
    """

    value: str
    against: Query = {}
    over: str | None = None
    across: tuple[str, ...] = ()
    interval: tuple[str, str] | None = None
    how: Literal["every", "typical"] = "every"
    at_least: Number = -math.inf
    at_most: Number = math.inf
    between: tuple[Number, Number] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of the value; either may be infinite."""
        return self.between or (self.at_least, self.at_most)

    @model_validator(mode="after")
    def _validate_bounds(self) -> Self:
        if self.between and (self.at_least, self.at_most) != (-math.inf, math.inf):
            raise ValueError("between cannot be combined with at_least or at_most")
        low, high = find_bounds(self.value)
        if self.over:
            low, high = -math.inf, math.inf
        elif self.against:
            high = math.inf
        least, most = self.bounds
        if least > most:
            raise ValueError(f"the rule can never hold: nothing is at least {least:g} and at most {most:g}")
        quantity = "the exponent" if self.over else "the ratio" if self.against else self.value
        if least <= low and high <= most:
            raise ValueError(f"the rule can never fail: {quantity} always lies between {low:g} and {high:g}")
        if most < low or high < least:
            raise ValueError(f"the rule can never hold: {quantity} always lies between {low:g} and {high:g}")
        return self


class Claim(_LedgerModel):
    """A claim of a source, in our own words, and its test.

    mechanism: by default that of the rows. says: the figures as published. where: table, column and row of the source,
    or the words of a section. from_memory: the figures could not be looked up. arithmetic: the claim is true by
    construction. rows: the rows that test it. regime: conditions under which it applies. run: the command that measures
    such rows. date: when the rule was created. hash: of id, date, rows, regime and rule. replaces: the id of the claim
    whose rule this one changed, by default the preceding version of an id that ends in ``-v2``, ``-v3``...
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    mechanism: str
    claim: str
    says: str
    where: str = ""
    from_memory: bool = False
    arithmetic: bool = False
    rows: Query
    regime: Query = {}
    rule: ClaimRule
    run: str
    date: dt.datetime | dt.date
    hash: str = ""
    replaces: str = ""

    @model_validator(mode="before")
    @classmethod
    def _set_defaults(cls, claim: Any) -> Any:
        match claim:
            case {"rows": {"variant": str(variant)}} if name := re.match("[^:|*]+", variant):
                claim = {"mechanism": name[0], **claim}
        match claim:
            case {"id": str(claim_id)} if version := re.fullmatch("(.+)-v([2-9])", claim_id):
                former = f"-v{int(version[2]) - 1}".removesuffix("-v1")
                claim = {"replaces": version[1] + former, **claim}
        return claim

    @model_validator(mode="after")
    def _validate_claim(self) -> Self:
        if self.where and self.from_memory:
            raise ValueError("a figure from memory has no place in the source: leave out where or from_memory")
        check_columns(self.columns)
        for query in (self.rows, self.regime, self.rule.against):
            check_conditions(query)
        if not self.rows:
            raise ValueError("rows must have at least one condition, otherwise every row matches")
        return self

    @property
    def group(self) -> ClaimGroup:
        """Claims of another group than ``published`` do not count."""
        if self.arithmetic:
            return "arithmetic"
        return "from memory" if self.from_memory else "published"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it uses."""
        rule = self.rule
        names = (rule.value, *self.rows, *self.regime, *rule.against, *rule.across, *(rule.interval or ()))
        return (*names, rule.over) if rule.over else names

    @property
    def created_at(self) -> dt.datetime:
        """When the rule was created; for a date without a time, the end of that day (UTC)."""
        if isinstance(self.date, dt.datetime):
            return self.date if self.date.tzinfo else self.date.replace(tzinfo=dt.UTC)
        return dt.datetime.combine(self.date + dt.timedelta(days=1), dt.time(), dt.UTC)

    @property
    def expected_hash(self) -> str:
        """The hash that the file must contain: of the rule and the rows, not of the prose."""
        payload = {"id": self.id, "date": self.date.isoformat()}
        payload |= self.model_dump(mode="json", include={"rows", "regime", "rule"}, exclude_defaults=True)
        return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:12]


class ClaimSource(_LedgerModel):
    """A paper, textbook or library, and its claims. cite: short citation. checked: where in the source the figures were
    found, and what they refer to."""

    title: str
    cite: str
    kind: Literal["paper", "textbook", "library"] = "paper"
    url: str = ""
    checked: str = ""
    claim: tuple[Claim, ...] = Field(min_length=1)


@dataclass(frozen=True)
class LedgerEntry:
    """A claim with its source. counts: whether it is neither arithmetic nor from memory, and one of the first
    `MAX_COUNTED` such claims of its mechanism and source."""

    file: str
    source: ClaimSource
    claim: Claim
    counts: bool


def load_ledger(files: Sequence[Path] = ()) -> list[LedgerEntry]:
    """Load the claims of these files, by default of the bundled ledger. Raises `UsageError` for the first mistake, such
    as a rule that does not match its hash."""
    entries: list[LedgerEntry] = []
    for file in dict.fromkeys(files) or sorted(LEDGER_FOLDER.glob("*.toml")):
        source, numbers = read_source(file), Counter[str]()
        if wrong_claims := list_wrong_hashes(source):
            claim = wrong_claims[0]
            change = "has a rule that does not match its hash; give it a new id and date, then" if claim.hash else ""
            remedy = f"{change or 'has no hash;'} use the hash that `efficient-attn claims --check` prints"
            raise UsageError(f"{file}: claim {claim.id!r} {remedy}")
        for claim in source.claim:
            numbers[claim.mechanism] += claim.group == "published"
            counts = claim.group == "published" and numbers[claim.mechanism] <= MAX_COUNTED
            entries.append(LedgerEntry(file.stem, source, claim, counts))
    ids = [entry.claim.id for entry in entries]
    _check_unique(ids, "the claims")
    for claim in (entry.claim for entry in entries):
        if claim.replaces in ids:  # one of the two rules could be chosen after the result
            raise UsageError(f"claim {claim.id!r} replaces {claim.replaces!r}, which must be removed")
    return entries


def read_source(file: Path) -> ClaimSource:
    """Read a file's claims without checking their hashes."""
    try:
        source = ClaimSource.model_validate(parse_toml(read_toml(file), str(file)))
    except ValidationError as error:
        raise format_problem(str(file), error, _list_keys) from error
    _check_unique([claim.id for claim in source.claim], str(file))
    return source


def check_task_columns(claim: Claim, known_columns: Sequence[str], file: str) -> None:
    """Raise `UsageError` for a column that no task adds. known_columns: may be patterns (``train.at_*``)."""
    for column in claim.columns:
        if "." in column and not any(fnmatchcase(column, name) for name in known_columns):
            raise make_unknown_error("column", column, known_columns, where=f"{file}: claim {claim.id!r}")


def list_wrong_hashes(source: ClaimSource) -> list[Claim]:
    """Return the claims whose rule does not match their hash."""
    return [claim for claim in source.claim if claim.hash != claim.expected_hash]


def _check_unique(ids: Sequence[str], source: str) -> None:
    if repeated := [name for name, count in Counter(ids).items() if count > 1]:
        raise UsageError(f"{source}: duplicate id {repeated[0]!r}")


def _list_keys(table: list[int | str]) -> list[str]:
    if {"rows", "regime", "against"} & {*table[:-1]}:
        return [*Range.model_fields]
    models: dict[Any, type[BaseModel]] = {"claim": Claim, "rule": ClaimRule}
    model = next((models[name] for name in reversed(table) if name in models), ClaimSource)
    return [*model.model_fields]
