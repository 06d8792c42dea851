"""Models of ``index.json``, the machine-readable list of a site's contents."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from ...results.file_marks import MARK

SCHEMA_FILE = "index.schema.json"


class _IndexModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class ListedRun(_IndexModel):
    """A run. page, rows: addresses within the site; ok: number of its cases with a result."""

    name: str
    digest: str
    suite: str
    title: str
    machines: list[str]
    started: str
    torch: str
    commit: str
    ok: int
    cases: int
    page: str
    rows: str


class ListedMechanism(_IndexModel):
    """A mechanism in the index."""

    name: str
    family: str
    sentence: str
    page: str


class ListedClaim(_IndexModel):
    """A claim in the index. counts: whether it is one of those that count, as in `ledger.LedgerEntry`."""

    id: str
    mechanism: str
    source: str
    group: str
    counts: bool
    verdict: str
    page: str


class ListedLeaderboard(_IndexModel):
    """The leaderboard in the index. blocks: the scripts with its lines."""

    lines: int
    page: str
    blocks: list[str]


class ListedTask(_IndexModel):
    """A task in the index."""

    name: str
    rows: int
    page: str


class Index(_IndexModel):
    """The contents of a site. version: of this format; rows: the file with the rows of all runs."""

    schema_: str = Field(default=SCHEMA_FILE, alias="$schema")
    note: str = MARK
    version: int = 2
    rows: str
    runs: list[ListedRun]
    mechanisms: list[ListedMechanism]
    claims: list[ListedClaim]
    leaderboard: ListedLeaderboard
    tasks: list[ListedTask]
