"""The rows of runs as one frame, with what is computed from their records; large runs are parsed once."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from . import frames, gathered_cache, store
from .exchange import name_group
from .gathered_cache import Gathered
from .rows import Record, Row
from .shards import Damage, warn_of_damages

LearningCurve: TypeAlias = tuple[tuple[float, float], ...]
AlignmentWeights: TypeAlias = tuple[tuple[float, ...], ...]

# the columns that `gather` adds to those of rows
ADDED_DTYPES = {"baseline": "string", "baseline_kv_heads": "Int64", "mean_value_error": "float64"}
ADDED_DTYPES |= {"curve": "object", "alignment": "object"}
SAMPLES_READ = frozenset({"steps", "validation", "alignment", "mean_value_error"})
MOST_TOKENS = 64  # larger alignments are not plotted


def load(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> pd.DataFrame:
    """The rows of one or more runs (folders, or their ``rows.jsonl``) as one DataFrame with the columns of `Row`;
    instead of ``extra`` a column ``task.name`` for each value that a task added.

    Columns that do not apply are empty. If a case was measured again, only its latest row is included. Damaged records
    are skipped with a `DamagedRecord` warning. Raises `UsageError` for a folder without a run.
    """
    run_paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    gathered, damages = gather_rows([Path(path) for path in run_paths])
    warn_of_damages(damages)
    return gathered.loaded


def gather_rows(runs: Sequence[Path]) -> tuple[Gathered, list[Damage]]:
    """The rows of runs, in order, and the damaged lines. Raises `UsageError` for a folder without a run."""
    cache_file = gathered_cache.find_file(runs)
    if cache_file and (gathered := gathered_cache.read(cache_file)):
        return gathered, []
    damages: list[Damage] = []
    gathered = _parse_rows(runs, damages)
    if cache_file and not damages:
        gathered_cache.write(cache_file, gathered)
    return gathered, damages


def _parse_rows(runs: Iterable[Path], damages: list[Damage]) -> Gathered:
    """Parse the rows of the runs; appends damaged lines to `damages`."""
    rows: list[Row] = []
    added_values: list[tuple[Any, ...]] = []
    for path in runs:
        records = frames.read_records(path, keep_samples=_select_samples, on_damage=damages.append)
        rows += [record.row for record in records]
        suite_baseline = frames.find_suite_baseline(store.find_rows_path(path).parent)
        baselines = [record.row.baseline or suite_baseline for record in records]
        kv_heads = _find_baseline_heads(records, baselines)
        for record, baseline, heads in zip(records, baselines, kv_heads, strict=True):
            added_values.append((baseline, heads, *_read_samples(record.samples)))
    loaded = frames.make_frame(rows)
    added = pd.DataFrame(added_values, columns=list(ADDED_DTYPES), index=loaded.index).astype(ADDED_DTYPES)
    return Gathered(loaded, added)


def _select_samples(samples: Mapping[str, Any]) -> dict[str, Any]:
    return {name: samples[name] for name in SAMPLES_READ.intersection(samples)}


def _find_baseline_heads(records: Sequence[Record], baselines: Sequence[str | None]) -> list[int | None]:
    """Key-value heads of the baseline in each record's group. If it runs with several: those of the case that others
    are paired with, else the most, even if that case failed."""
    groups = [name_group(record) for record in records]
    heads_by_group: dict[str, tuple[bool, int]] = {}
    for name, record, baseline in zip(groups, records, baselines, strict=True):
        row = record.row
        if row.variant == baseline and row.kv_heads is not None:
            heads_by_group[name] = max(heads_by_group.get(name, (False, 0)), (row.is_baseline, row.kv_heads))
    return [heads_by_group[name][1] if name in heads_by_group else None for name in groups]


def _read_samples(samples: Mapping[str, Any]) -> tuple[float, LearningCurve | None, AlignmentWeights | None]:
    """The mean of the values as an approximation, its error, the learning curve, and the alignment."""
    if SAMPLES_READ.isdisjoint(samples):  # as nearly always
        return math.nan, None, None
    curve = _read_curve(_read_array(samples, "steps", "validation"))
    alignment = _read_alignment(_read_array(samples, "alignment"))
    return float(_read_array(samples, "mean_value_error").mean()), curve, alignment


def _read_array(samples: Mapping[str, Any], *names: str) -> np.ndarray:
    """The samples of these names as an array with a row for each; a single NaN if they are missing or invalid."""
    try:
        return np.asarray([samples[name] for name in names], dtype=float)
    except (KeyError, TypeError, ValueError):
        return np.array(np.nan)


def _read_curve(points: np.ndarray) -> LearningCurve | None:
    if points.ndim != 2:
        return None
    finite = points[:, np.isfinite(points).all(axis=0)]
    return tuple(zip(*finite.tolist(), strict=True)) or None


def _read_alignment(weights: np.ndarray) -> AlignmentWeights | None:
    if weights.ndim != 3 or not weights.size or max(weights.shape) > MOST_TOKENS or not np.isfinite(weights).all():
        return None
    return tuple(map(tuple, weights[0].clip(0.0, 1.0).tolist()))
