"""A plan split into files, run in parts, and merged; and merged runs of other kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import TINY, Command

import efficient_attn as ea
from efficient_attn.results.store import read

TRAINED = """
title          = "Split"
baseline       = "full"
variant        = [{ name = "full" }, { name = "linear" }]
rounds         = 2
max_rounds     = 2
pairs          = 2
vocab          = 32
examples       = 32
seeds          = 1
steps          = 24
learning_rates = [1e-3, 2e-3]
dims           = { heads = 2, head_dim = 8 }

[[part]]
name    = "training"
measure = ["mqar"]
axes    = { seq_len = [16], threads = [1], causal = [true] }
[[part]]
name    = "speed"
measure = ["forward"]
axes    = { seq_len = [8, 16], threads = [1] }
"""


@pytest.mark.slow
@pytest.mark.sampled(3)
def test_merged_parts_are_the_run_that_was_not_split(command: Command, tmp_path: Path) -> None:
    (tmp_path / "split.toml").write_text(TRAINED)
    assert command("run", "split.toml", "--out", "whole").code == 0
    done = command("plan", "split.toml", "--split", "4", "--out", "parts", "--json")
    assert done.code == 0, done.err
    parts = json.loads(done.out)["parts"]
    assert list(parts) == [f"parts/{number}.json" for number in (1, 2, 3, 4)]
    for number in (3, 1, 4, 2):
        done = command("run", "--plan-part", f"parts/{number}.json", "--out", f"runs/{number}")
        assert done.code == 0, done.err
        assert len(ea.load(tmp_path / "runs" / str(number))) == parts[f"parts/{number}.json"]
    done = command("merge", *(f"runs/{number}" for number in (2, 4, 1, 3)), "--out", "merged", "--json")
    assert (done.code, json.loads(done.out)["conflicts"]) == (0, []), done.err
    whole, merged = [
        [
            (
                row.case_key,
                row.status,
                row.accuracy,
                row.loss,
                row.steps,
                row.stop_reason if row.mode == "train" else "",
            )
            for row in (record.row for record in read(tmp_path / name))
        ]
        for name in ("whole", "merged")
    ]
    assert merged == whole
    assert any(score is not None for _, _, score, *_ in whole)
    assert command("report", "merged").code == 0


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite, and a part of its plan."""
    from shell import run

    folder = tmp_path_factory.mktemp("part")
    (folder / "tiny.toml").write_text(TINY)
    done = run("plan", "tiny.toml", "--seq-len", "8", "--split", "1", "--out=parts", "--jobs", "1", cwd=folder)
    assert done.code == 0, done.err
    assert "parts/1.json: 2 cases\n" in done.out
    return folder


def test_a_part_repeats_the_options_of_the_plan(part: Path) -> None:
    assert json.loads((part / "parts" / "1.json").read_text())["arguments"] == ["tiny.toml", "--seq-len", "8"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("run", "tiny.toml", "--plan-part", "parts/1.json"),
            "run: parts/1.json fixes the suite and its options; remove t",
        ),
        (
            ("run", "--plan-part", "parts/1.json", "--seq-len", "16"),
            "fixes the suite and its options; remove --seq-len",
        ),
        (("run", "--plan-part", "parts/2.json"), "parts/2.json: No such file or directory"),
        (("run", "--plan-part", "tiny.toml"), "tiny.toml: not a part of a plan: "),
        (("run",), "run: name a SUITE"),
        (("plan", "tiny.toml", "--split", "2"), "plan: --split 2 needs --out DIR"),
        (("plan", "tiny.toml", "--out", "x"), "plan: --out is where --split N writes parts"),
        (("plan", "tiny.toml", "--split", "9", "--out", "x"), "--split 9: the plan has 2 groups"),
        (("plan", "tiny.toml", "--split", "1", "--out", "parts"), "parts/1.json: exists; choose another --out"),
        (("merge", "nowhere", "--out", "x"), "nowhere"),
        (("merge", "parts", "--out", "x"), "parts: no run here"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], message: str, part: Path) -> None:
    from shell import run

    before = sorted(path.name for path in part.iterdir())
    done = run(*arguments, cwd=part)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert sorted(path.name for path in part.iterdir()) == before


@pytest.mark.parametrize("arguments", [[], ["--seq-len", "8"], ["tiny.toml", "--seq-len"], ["tiny.toml", "--nothing"]])
def test_a_part_with_other_arguments_is_refused(arguments: list[str], part: Path, tmp_path: Path) -> None:
    from shell import run

    content = json.loads((part / "parts" / "1.json").read_text())
    (tmp_path / "1.json").write_text(json.dumps(content | {"arguments": arguments}))
    (tmp_path / "tiny.toml").write_text(TINY)
    done = run("run", "--plan-part", "1.json", "--out", "out", cwd=tmp_path)
    assert (done.code, done.err.count("\n"), (tmp_path / "out").exists()) == (2, 1, False), done.err


def test_a_part_of_a_suite_that_has_changed_is_refused(part: Path, tmp_path: Path) -> None:
    from shell import run

    (tmp_path / "tiny.toml").write_text(TINY.replace("rounds   = 2\nmax_rounds=2", "rounds   = 3"))
    done = run("run", "--plan-part", part / "parts" / "1.json", "--out", "out", cwd=tmp_path)
    assert (done.code, (tmp_path / "out").exists()) == (2, False)
    assert "1.json: the suite or its mechanisms are not those of the plan (4 cases differ); use the same" in done.err
