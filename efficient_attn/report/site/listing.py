"""``index.json``: what the site holds, for programs, and the JSON schema that it keeps."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ...results.marks import MARK

INDEX, SCHEMA = "index.json", "index.schema.json"
VERSION = 1


class _Listed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ListedRun(_Listed):
    """A run. page, rows: addresses within the site; ok: how many of its cases gave a result."""

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


class ListedMechanism(_Listed):
    name: str
    family: str
    sentence: str
    page: str


class ListedClaim(_Listed):
    id: str
    mechanism: str
    source: str
    verdict: str
    page: str


class ListedLeaderboard(_Listed):
    suite: str
    machine: str
    cells: int
    page: str


class ListedTask(_Listed):
    name: str
    rows: int
    page: str


class Index(_Listed):
    """What a site holds. version: of this form; rows: the file with the rows of all runs."""

    schema_: str = Field(default=SCHEMA, alias="$schema")
    note: str = MARK
    version: int = VERSION
    rows: str
    runs: list[ListedRun]
    mechanisms: list[ListedMechanism]
    claims: list[ListedClaim]
    leaderboards: list[ListedLeaderboard]
    tasks: list[ListedTask]


def write_index(index: Index) -> str:
    return index.model_dump_json(indent=1, by_alias=True) + "\n"


def write_schema() -> str:
    said: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": MARK}
    return json.dumps(said | Index.model_json_schema(by_alias=True), indent=1) + "\n"
