"""Frames: one DataFrame of all rows, with dtypes that do not depend on missing values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import report_runs as runs

import efficient_attn as ea
from efficient_attn.results.frames import COLUMN_DTYPES, make_frame
from efficient_attn.results.rows import COLUMNS, SCHEMA_VERSION, Record, Row
from efficient_attn.results.shards import ROWS_FILE, DamagedRecord
from efficient_attn.results.store import RunWriter


def run(folder: Path, *rows: Row) -> Path:
    with RunWriter(folder) as writer:
        for row in rows:
            writer.write(Record(row))
    return folder


def test_columns_and_types_follow_from_the_row() -> None:
    empty = make_frame([])
    assert (*empty.columns[:-1], "extra", empty.columns[-1]) == COLUMNS
    assert len(empty) == 0
    full = make_frame([Row(seq_len=3, causal=True, latency_ms=1.5, variant="full")])
    assert dict(full.dtypes.astype(str)) == dict(empty.dtypes.astype(str)) == COLUMN_DTYPES
    expected = {"seq_len": "Int64", "causal": "boolean", "latency_ms": "float64", "status": "string"}
    assert {name: COLUMN_DTYPES[name] for name in expected} == expected


def test_empty_cells_stay_empty_and_numbers_stay_whole() -> None:
    df = make_frame([Row(seq_len=2**40 + 1, causal=False), Row()])
    assert df.seq_len[0] == 2**40 + 1
    assert df.seq_len.isna().tolist() == [False, True]
    assert df.causal[0] is False or not df.causal[0]
    assert pd.isna(df.causal[1])


def test_values_of_tasks_become_columns() -> None:
    sort = {"seconds": 0.5, "rounds": 3, "order": "up", "stable": True, "big": 2**80, "mixed": 1, "nothing": None}
    rows = [Row(task="sort", extra=sort), Row(task="speed"), Row(task="sort", extra={"seconds": 2, "mixed": "x"})]
    rows.append(Row(task="recall", extra={"seconds": False}))
    df = make_frame(rows)
    assert "extra" not in df
    assert list(df.columns) == [*COLUMN_DTYPES, *(f"sort.{name}" for name in sort), "recall.seconds"]
    assert {name: str(df.dtypes[name]) for name in df.columns if "." in name} == {
        "sort.seconds": "float64", "sort.rounds": "Int64", "sort.order": "string", "sort.stable": "boolean",
        "sort.big": "float64", "sort.mixed": "object", "sort.nothing": "object", "recall.seconds": "boolean",
    }  # fmt: skip
    assert df["sort.seconds"].fillna(-1).tolist() == [0.5, -1, 2, -1]
    assert df["sort.mixed"].tolist() == [1, None, "x", None]
    assert df["recall.seconds"].isna().tolist() == [True, True, True, False]


def test_names_with_a_dot_are_shared_between_tasks() -> None:
    rows = [Row(task="mqar", extra={"train.score": 0.5, "own": 1}), Row(task="lm", extra={"train.score": 2.0})]
    df = make_frame(rows)
    assert list(df.columns) == [*COLUMN_DTYPES, "train.score", "mqar.own"]
    assert df["train.score"].tolist() == [0.5, 2.0]


def test_values_of_tasks_are_loaded(tmp_path: Path) -> None:
    one = run(tmp_path / "one", Row(case_key="a", task="sort", extra={"seconds": 0.25}))
    two = run(tmp_path / "two", Row(case_key="b", task="speed"))
    assert ea.load([two, one])["sort.seconds"].isna().tolist() == [True, False]
    assert list(ea.load(two).columns) == list(COLUMN_DTYPES)


def test_load_joins_runs_given_in_any_way(tmp_path: Path) -> None:
    one = run(tmp_path / "one", Row(case_key="a"), Row(case_key="b"))
    two = run(tmp_path / "two", Row(case_key="c"))
    assert ea.load(one).case_key.tolist() == ["a", "b"]
    assert ea.load(str(one)).case_key.tolist() == ["a", "b"]
    assert ea.load([one, str(two / ROWS_FILE)]).case_key.tolist() == ["a", "b", "c"]
    assert ea.load(iter([two])).case_key.tolist() == ["c"]
    assert ea.load([]).empty


def test_only_the_latest_of_a_case_is_loaded(tmp_path: Path) -> None:
    folder = run(tmp_path, Row(case_key="a#1", status="oom"), Row(case_key="b#1"), Row(case_key="a#2"))
    loaded = ea.load(folder)
    assert loaded.case_key.tolist() == ["a#2", "b#1"]
    assert loaded.status.tolist() == ["ok", "ok"]


def test_damage_is_skipped_with_a_warning(tmp_path: Path) -> None:
    folder = run(tmp_path, Row(case_key="a"), Row(case_key="b"))
    path = folder / ROWS_FILE
    path.write_text(path.read_text().replace('"a"', '"c"'))
    with pytest.warns(DamagedRecord, match=rf"{ROWS_FILE}:1: the checksum does not match.*; left out"):
        assert ea.load(folder).case_key.tolist() == ["b"]


@pytest.mark.parametrize("name", ["quickstart_zen4", "sparse"])
def test_published_runs_are_loaded(name: str) -> None:
    loaded = ea.load(Path(__file__).parents[3] / "results" / name)
    dtypes = dict(loaded.dtypes.astype(str))
    assert {column: dtypes[column] for column in COLUMN_DTYPES} == COLUMN_DTYPES
    assert all("." in column for column in dtypes.keys() - COLUMN_DTYPES), "besides, columns of tasks"
    assert len(loaded) > 20
    assert set(loaded.schema) == {SCHEMA_VERSION}
    assert loaded.case_key.is_unique


# -- what rows of older schemas did not say --------------------------------------------------------------------------

PUBLISHED = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("name", ["quickstart_zen4", "decode_xeon", "linear_xeon", "sparse", "sparse_peers_glibc"])
def test_published_speedups_have_a_baseline(name: str) -> None:
    loaded = ea.load(PUBLISHED / name)
    compared = loaded[loaded.speedup.notna()]
    assert len(compared) > 20
    assert compared[["part", "baseline"]].notna().all(axis=None)
    based = compared[(compared.speedup == 1) & (compared.speedup_high == 1)]
    assert (based.variant == based.baseline).all()


def test_a_pivot_by_baseline_does_not_mix_baselines() -> None:
    """cosFormer was timed against full and against linear: one speedup each, where a pivot without it averages them."""
    loaded = ea.load(PUBLISHED / "linear_xeon")
    at = loaded[(loaded["mode"] == "forward") & loaded.causal & (loaded.seq_len == 4096)]
    found = at.pivot_table(index="variant", columns="baseline", values="speedup", aggfunc=["mean", "count"])
    assert set(found["mean"].columns) >= {"full", "linear"}
    means = found["mean"].loc["cosformer"]
    assert means["full"] > 3
    assert means["linear"] < 1


def written(folder: Path, *rows: Row, **about: object) -> Path:
    return runs.write_run(folder, map(Record, rows), runs.about(**about))


def test_a_part_is_compared_with_its_own_baseline_else_with_the_suites(tmp_path: Path) -> None:
    baseline_speedup = {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0}
    rows = [
        Row(case_key="s/own/a", part="own", variant="linear:a=1", **baseline_speedup),  # type: ignore[arg-type]
        Row(case_key="s/own/b", part="own", variant="full"),
        Row(case_key="s/lost/a", part="lost", variant="full:scale=2", status="oom"),
        Row(case_key="s/lost/b", part="lost", variant="linear"),
        Row(case_key="s/alone", part="alone", variant="linear"),
        Row(case_key="s/given", part="own", variant="linear", baseline="mqa"),
    ]
    baselines = ea.load(written(tmp_path / "run", *rows)).baseline
    assert baselines.fillna("none").tolist() == ["linear:a=1"] * 2 + ["full:scale=2"] * 2 + ["none", "mqa"]


def test_rows_are_loaded_despite_a_damaged_run_json(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", Row(case_key="s/a", part="p", variant="full"))
    (folder / "run.json").write_text("{")
    with pytest.warns(DamagedRecord, match=r"run\.json: damaged: .*; the baselines of its older rows stay empty"):
        assert ea.load(folder).baseline.isna().tolist() == [True]


def test_a_folder_without_a_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ea.UsageError, match="no run here"):
        ea.load(tmp_path)


def test_reading_results_needs_no_torch(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", Row(case_key="a"))
    code = (
        f"import sys, efficient_attn as ea; assert len(ea.load({str(folder)!r})) == 1; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
