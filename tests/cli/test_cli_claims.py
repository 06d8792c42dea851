"""The verb claims: published runs, and invalid claim files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from compare_runs import write as write_run
from ledgers import pair, write
from shell import Command

RESULTS = Path(__file__).parents[2] / "results"
RUNS = sorted(path.parent for path in RESULTS.glob("*/rows.jsonl.gz"))
DECIDED = ("reproduced", "contradicted")


@pytest.mark.slow
def test_the_published_runs_decide_many_claims(command: Command) -> None:
    done = command("claims", *RUNS, "--json")
    assert (done.code, done.err) == (0, "")
    counted = [claim for claim in json.loads(done.out) if claim["counts"]]
    found = Counter(claim["verdict"] for claim in counted)
    assert len(counted) >= 60
    assert sum(claim["measured"] is not None for claim in counted) >= 35
    assert found["reproduced"] >= 20
    assert found["contradicted"] >= 8
    assert all(claim["measured"]["machine"] for claim in counted if claim["verdict"] in DECIDED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run, and a valid ledger next to it."""
    write_run(tmp_path / "run", pair(5.0))
    write(tmp_path / "mine.toml")
    return tmp_path


def test_ones_own_claims_are_judged(folder: Path, command: Command) -> None:
    done = command("claims", "run", "--claims", "mine.toml")
    assert (done.code, done.err) == (0, "")
    assert "a-claim: It is fast." in done.out
    assert "1 claims, 1 counted (at most three per mechanism and source): 1 reproduced." in done.out
    write(folder / "mine.toml", 'value = "speedup", at_least = 20')
    contradicted = command("claims", "run", "--claims", "mine.toml", "--json")
    assert (contradicted.code, json.loads(contradicted.out)[0]["verdict"]) == (0, "contradicted")


def test_a_check_prints_the_hash_to_put_in(folder: Path, command: Command) -> None:
    assert command("claims", "--check", "mine.toml").out == "mine.toml: 1 claims, none with a wrong hash\n"
    right = (folder / "mine.toml").read_text()
    (folder / "mine.toml").write_text(right.replace("at_least = 2", "at_least = 3"))
    refused = command("claims", "run", "--claims", "mine.toml")
    assert refused.code == 2
    assert "has a rule that does not match its hash; give it a new id and date" in refused.err
    done = command("claims", "--check", "mine.toml")
    assert done.code == 2
    hashes = json.loads(command("claims", "--check", "mine.toml", "--json").out)
    assert done.out.endswith(f'a-claim: hash = "{hashes["mine.toml"]["a-claim"]}"\n')


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ('value = "speedup", at_least = 0', "the rule can never fail"),
        ('value = "swap.los", at_least = 2', "unknown column 'swap.los'; did you mean 'swap.loss'?"),
    ],
)
def test_mistakes_end_with_2_and_one_line(rule: str, message: str, folder: Path, command: Command) -> None:
    write(folder / "wrong.toml", rule, hash="")
    done = command("claims", "--check", "wrong.toml")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "needs at least one run's folder"),
        (("run", "--check", "mine.toml"), "leave out RUN"),
        (("nothing", "--claims", "mine.toml"), "nothing"),
        (("run", "--claims", "none.toml"), "none.toml: no such file"),
    ],
)
def test_bad_usage_ends_with_2(arguments: tuple[str, ...], message: str, folder: Path, command: Command) -> None:
    done = command("claims", *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err


def test_rows_of_a_newer_version_are_refused(folder: Path, command: Command) -> None:
    from efficient_attn.results import rows

    newer = pair(5.0)
    for record in newer:
        record.row.schema = rows.SCHEMA_VERSION + 1
    write_run(folder / "newer", newer)
    done = command("claims", "newer", "--claims", "mine.toml")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "newer than this version reads" in done.err
