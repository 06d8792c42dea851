"""Rows as one pandas DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from .rows import COLUMNS, Row
from .store import read

_TEXT = ("run_id suite case_key variant backend family options device dtype mode status reason machine backend_used "
         "task inputs metric stop_reason").split()  # fmt: skip
_WHOLE = ("batch heads kv_heads seq_len kv_len head_dim threads pairs pairs_computed peak_memory_bytes output_bytes "
          "saved_bytes workspace_bytes state_bytes layer steps parameters seed schema").split()  # fmt: skip
_TRUTH = ("causal", "compiled")
DTYPES = {
    name: "string" if name in _TEXT else "Int64" if name in _WHOLE else "boolean" if name in _TRUTH else "Float64"
    for name in COLUMNS
}


def load(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> pd.DataFrame:
    """The rows of one or more runs (folders, or their ``rows.jsonl``) as one DataFrame with the columns of `Row`.

    Cells that do not apply are ``<NA>``. Raises `UsageError` for a folder without a run or a record that was altered.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    return frame(record.row for path in several for record in read(Path(path)))


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a DataFrame, every column of its fixed type even where all cells are empty."""
    return pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS)).astype(DTYPES)
