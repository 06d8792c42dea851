"""The leaderboard: the newest row of each case, its quality, and blocks of bounded size."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pandas as pd
import pytest
import report_runs as runs

from efficient_attn.report.answers.quality import Quality
from efficient_attn.report.comparable_quality import MeasuredQuality, QualityConditions, QualityFigure, QualitySet
from efficient_attn.report.site import leaderboard
from efficient_attn.report.site.leaderboard import Leaderboard, LineMaker, Number, filter_newest

MAKER = LineMaker(
    Quality(pd.DataFrame()), {"Xeon-x2-15GiB": "Xeon"}, {"linear": "m/linear.html"}, {"new": ("run", "r/1")}
)


class _NoQuality:
    """Without any measured quality."""

    perplexity_ratios = errors = leaderboard.MeasuredQuality()


def _timed(variant: str = "linear", ms: float = 2.0, **known: Any) -> runs.Row:
    values: dict[str, Any] = {"mode": "forward", "seq_len": 8192, "latency_ms": ms, "baseline": "full", "speedup": 4.0}
    return runs.row(variant, **(values | known))


def _make(*rows: runs.Row) -> Leaderboard:
    maker = LineMaker(_NoQuality(), MAKER.machines, MAKER.links, MAKER.runs)  # type: ignore[arg-type]
    return maker.make(filter_newest(pd.DataFrame([asdict(row) for row in rows])))


def test_the_newest_row_of_a_case_is_shown() -> None:
    rows = [_timed(ms=2.0, run_id="old"), _timed(ms=3.0, run_id="new"), _timed(ms=9.0, seq_len=64)]
    rows += [_timed(status="timeout"), _timed(task="swap"), _timed(ms=None)]  # type: ignore[arg-type]
    first, second = _make(*rows).lines
    assert (first.time, first.run, first.run_link) == (Number(3.0, "3.00 ms"), "run", "r/1")
    assert (second.length, second.run) == (64, "")
    assert (first.name, first.link, first.machine, first.task) == (
        "linear",
        "m/linear.html",
        "Xeon",
        "reading a prompt",
    )
    assert first.shape == "1 thread, batch 1, 4 heads of size 64"


def test_only_speedups_over_exact_attention_are_sorted() -> None:
    over_full, over_other, unknown = _make(
        _timed(speedup_low=3.0, speedup_high=5.0),
        _timed(seq_len=64, baseline="peer_x"),
        _timed(seq_len=32, speedup=None),
    ).lines
    assert over_full.speedup == Number(4.0, "4.00x", "3.00\u20135.00")
    assert over_other.speedup == Number(None, "4.00x", "over peer_x")
    assert unknown.speedup == Number()


def test_shared_heads_options_and_decode_states_are_named() -> None:
    (line,) = _make(_timed("gqa", mode="decode", kv_heads=2, state_bytes=2048, causal=True)).lines
    assert (line.name, line.options, line.task) == ("gqa", "kv_heads=2", "decoding a token")
    assert line.memory == Number(2048, "2.00 KiB", "state")
    (line,) = _make(_timed("a:x=1|b", mode="prefill", cache="cold", compiled=True, device="cuda")).lines
    assert (line.name, line.options, line.task) == ("a | b", "x=1", "prefill")
    assert line.shape == "cuda, 1 thread, batch 1, 4 heads of size 64, cold cache, compiled"


def test_exact_attention_is_exact_without_a_measurement() -> None:
    exact, other = _make(_timed("full"), _timed("linear")).lines
    assert (exact.perplexity, exact.error) == (Number(1.0, "exact"), Number(0.0, "exact"))
    assert (other.perplexity, other.error) == (Number(), Number())


def test_qualities_are_those_of_the_same_direction() -> None:
    figure = QualityFigure("perplexity", 1.25, "", QualityConditions("smollm2@1", 8192, True))
    quality = _NoQuality()
    quality.perplexity_ratios = MeasuredQuality((QualitySet(figure.conditions, {"linear": figure}),))  # type: ignore[arg-type]
    maker = LineMaker(quality, {}, {}, {})  # type: ignore[arg-type]
    rows = [asdict(_timed(causal=causal, seq_len=length)) for causal in (True, False) for length in (8192, 64)]
    lines = maker.make(filter_newest(pd.DataFrame(rows))).lines
    shown = Number(1.25, "1.25x", "SmolLM2-135M, 8K, causal")
    assert [line.perplexity for line in lines] == [shown, shown, Number(), Number()]


def test_blocks_are_split_by_machine_and_task_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [_timed(f"linear:eps={number}") for number in range(50)] + [_timed(mode="decode"), _timed(machine="B")]
    board = _make(*rows)
    assert [block[1:] for block in board.as_data()["blocks"]] == [
        ["Xeon", "decoding a token", 1],
        ["Xeon", "reading a prompt", 50],
        ["\u2013", "reading a prompt", 1],
    ]
    monkeypatch.setattr(leaderboard, "MAX_BLOCK_BYTES", 2500)
    small = _make(*rows)
    assert len(small.blocks) > 4
    assert all(len(script) <= 2500 for _, script in small.format_scripts())
    assert sum(block[3] for block in small.as_data()["blocks"]) == len(rows)


def test_a_block_decodes_to_its_lines() -> None:
    board = _make(_timed("</script><script>x\u2028y", ms=1.23456789), _timed())
    ((name, script),) = board.format_scripts()
    assert name == "leaderboard-0.js"
    assert "\u2028" not in script
    arguments = script.removeprefix("addBlock(").removesuffix(");\n")
    _, texts, lines = json.loads(f"[{arguments}]")
    line = dict(zip(board.as_data()["fields"], lines[0], strict=True))
    assert (texts[line["name"]], line["length"]) == ("</script><script>x y", 8192)
    assert (line["time"][0], texts[line["time"][1]]) == (1.2346, "1.23 ms")


def test_the_first_view_has_most_lines_at_the_length_nearest_to_8k() -> None:
    rows = [*(_timed(seq_len=n, causal=True) for n in (64, 4096, 65536)), _timed(machine="B"), _timed(mode="decode")]
    assert _make(*rows).as_data()["defaults"] == {
        "machine": "Xeon", "task": "reading a prompt", "direction": "causal", "length": 4096,
    }  # fmt: skip
    assert _make(_timed(status="timeout")).as_data()["blocks"] == []
    assert _make(_timed(status="timeout")).as_data()["defaults"] == {}
