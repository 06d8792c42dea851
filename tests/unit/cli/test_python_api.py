"""Runs from Python: creating and opening them, their rows, and unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_runs as runs
from shell import TINY

import efficient_attn as ea


@pytest.mark.sampled(6)
def test_a_suite_is_run_and_its_rows_are_read(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    calls = []
    found = ea.run(
        tmp_path / "tiny.toml",
        out=tmp_path / "out",
        seq_len=[8],
        progress=lambda record, done, total: calls.append((done, total)),
    )
    assert set(found.frame["seq_len"]) == {8}
    assert set(found.frame["variant"]) == {"full", "linear"}
    assert calls == [(1, 2), (2, 2)]
    assert found.report().is_file()
    assert "--seq-len 8" in (tmp_path / "out" / "run.json").read_text()  # the override is recorded
    assert "out: 2 rows." in found._repr_html_()


def test_a_published_run_is_opened_and_read() -> None:
    found = ea.Run(Path(__file__).parents[3] / "results" / "decode_zen4")
    verdicts = set(found.claims()["verdict"])
    assert verdicts & {"reproduced", "contradicted"}
    answer = found.recommend(seq_len=16384, mode="decode", kv_heads=2, max_error=0.1, machine="Zen4")
    assert answer.choices[0].label.startswith("gqa")


def test_a_notebooks_table_is_escaped(tmp_path: Path) -> None:
    folder = runs.write_run(tmp_path / "<b>run", runs.speed(lengths=(512,), machine="<script>alert(1)</script>"))
    shown = ea.Run(folder)._repr_html_()
    assert "<script>" not in shown
    assert "<b>run" not in shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seqlen": 8}, "unknown key 'seqlen'; did you mean 'seq_len'"),
        ({"seq_len": ["1K"]}, "run: seq_len"),
        ({"dtype": "float23"}, "unknown value 'float23'"),
        ({"heads": 0}, "run: heads"),
        ({"shape": "llama"}, "unknown shape 'llama'"),
        ({"part": "nope"}, "unknown part 'nope'"),
        ({"variant": "fulll"}, "fulll"),
    ],
)
def test_unknown_names_are_reported(given: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ea.UsageError, match=message):
        ea.run("quickstart", out=tmp_path / "out", **given)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.sampled(6)
def test_abbreviations_and_shapes_are_those_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    found = ea.run(tmp_path / "tiny.toml", out=tmp_path / "out", seq_len=8, dtype="bf16", shape="smollm2")
    rows = found.frame
    assert {(r.dtype, r.heads, r.kv_heads, r.head_dim) for r in rows.itertuples()} == {("bfloat16", 9, 3, 64)}
