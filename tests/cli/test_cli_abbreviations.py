"""Abbreviated lengths and dtypes, parts and shapes; the verbs runs and clean."""

from __future__ import annotations

import json
from pathlib import Path

import report_runs as runs
from shell import Command

from efficient_attn.report.write import write_report


def test_plan_accepts_abbreviated_values(command: Command) -> None:
    done = command(
        "plan", "quickstart", "--part", "length", "--seq-len", "1K", "--dtype", "bf16", "--shape", "bert-base", "--json"
    )
    assert (done.code, done.err) == (0, "")
    cases = json.loads(done.out)
    assert {(c["seq_len"], c["dtype"], c["heads"], c["head_dim"]) for c in cases} == {(1024, "bfloat16", 12, 64)}


def test_options_override_a_shape(command: Command) -> None:
    done = command("plan", "quickstart", "--part", "length", "--shape", "llama3-8b", "--heads", "8", "--json")
    assert {(c["heads"], c["kv_heads"], c["head_dim"]) for c in json.loads(done.out)} == {(8, 8, 128)}


def test_a_part_that_does_not_exist_is_named(command: Command) -> None:
    done = command("plan", "quickstart", "--part", "lenght")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "unknown part 'lenght'; did you mean 'length'" in done.err


def test_a_part_may_have_a_comma_in_its_name(command: Command) -> None:
    def plan(parts: str) -> set[str]:
        done = command("plan", "linear", "--part", parts, "--json")
        return {case["part"] for case in json.loads(done.out)}

    assert plan("growth, causal") == {"growth, causal"}
    assert plan("growth,growth,causal,decoding") == {"growth", "growth, causal", "decoding"}
    done = command("plan", "linear", "--part", "causal")
    assert "did you mean 'growth, causal'? (choices: compiled, crossover, 'crossover, causal'," in done.err


def test_runs_are_listed_and_cleaned(command: Command, tmp_path: Path) -> None:
    folder = runs.write_run(tmp_path / "mine" / "one", runs.speed(lengths=(512,)))
    write_report([folder], folder)
    (listed,) = json.loads(command("runs", tmp_path / "mine", "--json").out)
    assert listed["suite"] == "quickstart"
    dry = command("clean", tmp_path / "mine", "--dry-run")
    assert "would be removed" in dry.out
    assert (folder / "report.html").is_file()
    assert "removed" in command("clean", tmp_path / "mine").out
    assert not (folder / "report.html").exists()
    assert (folder / "rows.jsonl").is_file()
    assert command("runs", tmp_path / "nowhere").code == 2


def test_mechanisms_with_other_key_value_heads_than_the_shape_are_left_out(command: Command) -> None:
    done = command("plan", "quickstart", "--shape", "llama3-8b", "--part", "length,decoding")
    assert done.code == 0
    assert "32/8 x 128" in done.out
    assert "--shape llama3-8b: left out of part 'decoding': gqa:kv_heads=2, mqa: other key-value heads" in done.err
