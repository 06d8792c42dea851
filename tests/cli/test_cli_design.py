"""A suite with an experimental design: its points, padded and packed rows, and main effects on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import Command

import efficient_attn as ea

DESIGN = """
title      = "Points"
measure    = ["forward"]
baseline   = "full"
rounds     = 2
max_rounds = 2
processes  = 1
design     = { points = 7 }
variant    = [{ name = "full" }, { name = "linear" }]
[axes]
threads    = [1]
heads      = [1, 2]
seq_len    = [8, 40]
fill       = ["full", "half", "packed"]
[dims]
batch      = 2
head_dim   = 8
"""


@pytest.mark.slow
@pytest.mark.sampled(4)
def test_a_design_is_planned_run_and_its_effects_shown(command: Command, tmp_path: Path) -> None:
    (tmp_path / "points.toml").write_text(DESIGN)
    assert "14 cases" in command("plan", "points.toml").out
    done = command("run", "points.toml", "--out", "out")
    assert done.code == 0, done.err
    rows = ea.load(tmp_path / "out")
    assert set(rows["status"]) == {"ok"}
    assert set(rows["fill"]) == {"full", "half", "packed"}
    packed = rows[(rows["fill"] == "packed") & (rows["seq_len"] == 40)].iloc[0]
    assert packed["case_key"].split("#")[0].endswith("-all-packed")
    assert 2 * 10 <= packed["tokens_per_s"] * packed["latency_ms"] / 1e3 < 2 * 40  # of tokens, not of padding
    text = (tmp_path / "out/report.md").read_text()
    assert "## Effects: all" in text
    assert "Effects over 7 points (cpu, float32, 1 thread, batch 2, head size 8, forward, bidirectional, on " in text
    again = command("run", "points.toml", "--out", "out", "--resume")
    assert again.code == 0, again.err
    assert len(ea.load(tmp_path / "out")) == 14


def test_fill_is_an_option_of_plan_and_run(command: Command, tmp_path: Path) -> None:
    (tmp_path / "points.toml").write_text(DESIGN)
    assert "8 cases" in command("plan", "points.toml", "--fill", "half").out
    wrong = command("plan", "points.toml", "--fill", "haff")
    assert wrong.code == 2
    assert "did you mean 'half'?" in wrong.err
