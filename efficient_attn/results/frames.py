"""Rows as one pandas DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pandas as pd

from .rows import Row
from .store import read

# a column's type follows from the row's annotation; whole numbers and truth values keep theirs beside empty cells
_PANDAS = {"str": "string", "Status": "string", "int": "Int64", "float": "float64", "bool": "boolean"}
DTYPES = {f.name: _PANDAS[str(f.type).split(" ")[0]] for f in fields(Row)}


def load(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> pd.DataFrame:
    """The rows of one or more runs (folders, or their ``rows.jsonl``) as one DataFrame with the columns of `Row`.

    Cells that do not apply are empty. Of a case that was measured again only the latest row is there. Records that are
    damaged are left out with a `DamagedRecord` warning. Raises `UsageError` for a folder without a run.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    return frame(record.row for path in several for record in read(Path(path)))


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a DataFrame, every column of its fixed type even where all cells are empty."""
    return pd.DataFrame([vars(row) for row in rows], columns=list(DTYPES)).astype(DTYPES)
