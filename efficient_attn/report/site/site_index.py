"""``index.json``, the machine-readable list of a site's contents, and its JSON schema."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ...results.file_marks import MARK

INDEX_FILE, SCHEMA_FILE = "index.json", "index.schema.json"
INDEX_VERSION = 2


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
    version: int = INDEX_VERSION
    rows: str
    runs: list[ListedRun]
    mechanisms: list[ListedMechanism]
    claims: list[ListedClaim]
    leaderboard: ListedLeaderboard
    tasks: list[ListedTask]


def format_index(index: Index) -> str:
    """Format the index as JSON."""
    return index.model_dump_json(indent=1, by_alias=True) + "\n"


def format_schema() -> str:
    """Format the JSON schema of the index."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": MARK}
    return json.dumps(schema | Index.model_json_schema(by_alias=True), indent=1) + "\n"
