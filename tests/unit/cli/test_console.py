"""Terminal output: complete tables, plain lines, and a reason for every case that did not run."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pandas as pd
import pytest
import tiny_suites

import efficient_attn as ea
from efficient_attn.cli import console, summary
from efficient_attn.peers import PEERS
from efficient_attn.registry import catalogue, info
from efficient_attn.resources import list_model_shapes
from efficient_attn.results.frames import make_frame
from efficient_attn.results.rows import Record, Row

Capture = pytest.CaptureFixture[str]


def _printed(capsys: Capture) -> str:
    text = capsys.readouterr().out
    assert "\x1b" not in text
    return text


def test_the_catalogue_shows_every_mechanism_whole(capsys: Capture) -> None:
    console.show_catalogue(catalogue(), {"one": "The first.", "two": "The second."}, list_model_shapes(), PEERS)
    text = _printed(capsys)
    for entry in catalogue():
        (line,) = [x for x in text.splitlines() if x.startswith(f"{entry.name} ")]
        assert entry.family in line
        assert entry.sentence in line
    assert ["one", "The", "first."] in [line.split() for line in text.splitlines()]
    assert "llama3-8b" in text
    assert "performer-pytorch" in text


def test_info_shows_options_and_unclaimed_traits(capsys: Capture) -> None:
    console.show_info(info("sliding_window:window=7"))
    text = _printed(capsys)
    for piece in ("sliding_window:window=7 (sparse)", "window=7", "adaptive, ", "dense (runs adaptive)", "arXiv"):
        assert piece in text
    for name, (claimed, meaning) in info("sliding_window:window=7").traits.meanings().items():
        lines_of_traits = [line.strip().split(maxsplit=2) for line in text.splitlines()]
        assert [name, "yes" if claimed else "no", meaning] in lines_of_traits
    json.dumps(console.info_as_json(info("sliding_window:window=7")))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_patterns_are_drawn_in_the_terminals_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", out)
    console.show_info(info("sliding_window:window=3"))
    out.seek(0)
    lines = out.read().partition("pattern: ")[2].splitlines()
    assert max(map(len, lines)) <= 80 - len("pattern: ")
    head, _, *cells, _, length, said = lines[2:]
    assert head.split() == ["bidirectional", "causal"]
    assert length.split() == ["N", "=", "32"] * 2
    assert re.split("  +", said) == ["keeps 20.7% of all pairs", "keeps 23.1% of causal pairs"]
    half, full, box = ("\u2592", "\u2588", "\u2502") if encoding == "utf-8" else (":", "#", "|")
    assert len(cells) == console.GRID_ROWS
    left, right = cells[0].split(f"{box}  {box}")
    assert left == f"{box}{full * 4}{half}".ljust(1 + console.GRID_COLUMNS)  # a cell is two queries and a key
    assert right == f"{full}{half}".ljust(console.GRID_COLUMNS) + box


def test_only_supported_directions_are_drawn(capsys: Capture) -> None:
    console.show_info(replace(info("sliding_window"), traits=ea.Traits(bidirectional=False)))
    said = _printed(capsys)
    assert "% of causal pairs" in said
    assert "% of all pairs" not in said


def test_mechanisms_without_pattern_show_none(capsys: Capture) -> None:
    console.show_info(info("linear"))
    assert "pattern:" not in _printed(capsys)
    assert console.info_as_json(info("linear"))["pattern"] is None


def test_a_pattern_as_json_is_its_shares() -> None:
    found = json.loads(json.dumps(console.info_as_json(info("sliding_window:window=16|sliding_window:window=3"))))
    kept = {"bidirectional": pytest.approx(0.241, abs=1e-3), "causal": pytest.approx(0.247, abs=1e-3)}
    assert found["pattern"] == {"length": 128, "kept": kept, "exact": True}


def test_a_plan_shows_groups_and_counts(capsys: Capture) -> None:
    console.show_plan(tiny_suites.plan(tiny_suites.TINY.replace("[16]", "[16, 32, 64]")))
    text = _printed(capsys)
    (line,) = [x for x in text.splitlines() if x.startswith("all ")]
    assert line.split() == ["all", "forward", "cpu", "float32", "2", "x", "8", "full", "16", "32", "64", "3"]
    assert text.rstrip().endswith("3 cases")


def _rows(*rows: Row) -> pd.DataFrame:
    return make_frame(rows)


def _timed(variant: str, seq_len: int, ms: float, mode: str = "forward", **more: object) -> Row:
    return Row(variant=variant, seq_len=seq_len, latency_ms=ms, mode=mode, causal=False, task="speed", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_numbers_are_printed_in_the_terminals_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    row = _timed("linear", 128, 0.012, speedup=2.0, speedup_low=1.9, speedup_high=2.1)
    summary.show_results(_rows(row, _timed("full", 128, 0.024)))
    with console.show_progress(1) as update:
        update(Record(row), 1, 1)
    for stream in (out, err):
        stream.seek(0)
    to, micro = ("\u2013", "\u00b5") if encoding == "utf-8" else ("-", "u")
    text = out.read()
    assert f"12.0 {micro}s  2.00x (1.90{to}2.10)" in text
    assert next(x.split() for x in text.splitlines() if x.startswith("full")) == ["full", "24.0", f"{micro}s", to]
    assert err.read().endswith(f"12.0 {micro}s\n")


def test_progress_without_a_terminal_is_a_line_for_each_case(capsys: Capture) -> None:
    with console.show_progress(3) as update:
        update(Record(_timed("full", 64, 1.234)), 1, 3)
        update(Record(Row(variant="linear", seq_len=64, mode="decode", status="oom", reason="no memory")), 2, 3)
        update(Record(Row(variant="linear", task="fidelity", layer=4)), 3, 3)
    captured = capsys.readouterr()
    assert captured.out == ""
    one, two, three = captured.err.splitlines()
    assert one.startswith("[1/3]")
    assert one.endswith("forward full n=64: 1.23 ms")
    assert two.endswith("decode linear n=64: oom (no memory)")
    assert three.endswith("fidelity linear layer 4: ok")
    assert "\x1b" not in captured.err
