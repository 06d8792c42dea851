"""Files of claims: required contents, and hashes that detect changed rules."""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ledgers import claim_fields, write
from pydantic import ValidationError

from efficient_attn.cli.parser import make_parser
from efficient_attn.errors import UsageError
from efficient_attn.report.claims.ledger import (
    LEDGER_FOLDER,
    MAX_COUNTED,
    Claim,
    check_task_columns,
    list_wrong_hashes,
    load_ledger,
    read_source,
)

SHIPPED = load_ledger()


def test_the_bundled_ledger_has_unique_claims() -> None:
    assert sum(entry.counts for entry in SHIPPED) >= 60
    assert len({entry.claim.id for entry in SHIPPED}) == len(SHIPPED)
    assert {entry.file for entry in SHIPPED} == {path.stem for path in LEDGER_FOLDER.glob("*.toml")}
    counted = Counter((entry.file, entry.claim.mechanism) for entry in SHIPPED if entry.counts)
    assert max(counted.values()) == MAX_COUNTED


def test_every_source_states_where_its_figures_are_from() -> None:
    found = {entry.file: entry.source.checked for entry in SHIPPED}
    assert {name for name, text in found.items() if not re.fullmatch(r"[^\n]{20,300}\.", text)} == set()


def test_every_figure_has_a_place_in_its_source_or_is_from_memory() -> None:
    assert {entry.claim.id for entry in SHIPPED if bool(entry.claim.where) == entry.claim.from_memory} == set()
    counted = [entry.claim for entry in SHIPPED if entry.counts]
    assert all(claim.where and not claim.arithmetic for claim in counted)


def test_thresholds_are_the_exact_quotients_of_published_figures() -> None:
    noted = re.compile(r"^rule .*?(?:at_least|at_most) = ([0-9.]+) \} # ([0-9.]+) / ([0-9.]+)$", re.MULTILINE)
    found = [match for path in LEDGER_FOLDER.glob("*.toml") for match in noted.findall(path.read_text())]
    assert len(found) >= 15
    assert {(text, float(above) / float(below)) for text, above, below in found} == {
        (text, float(text)) for text, *_ in found
    }


def test_changed_rules_replace_older_ones_that_are_gone(tmp_path: Path) -> None:
    replaced = {entry.claim.replaces for entry in SHIPPED} - {""}
    assert len(replaced) >= 60
    assert not replaced & {entry.claim.id for entry in SHIPPED}
    changed = write(tmp_path / "b.toml", more='replaces = "a-claim"').read_text().replace("a-claim", "b-claim", 1)
    (tmp_path / "b.toml").write_text(changed)
    right = read_source(tmp_path / "b.toml").claim[0].expected_hash
    (tmp_path / "b.toml").write_text(re.sub('hash = ".*"', f'hash = "{right}"', changed))
    assert load_ledger([tmp_path / "b.toml"])[0].claim.replaces == "a-claim"
    with pytest.raises(UsageError, match="claim 'b-claim' replaces 'a-claim', which must be removed"):
        load_ledger([write(tmp_path / "a.toml"), tmp_path / "b.toml"])


def test_only_published_claims_count(tmp_path: Path) -> None:
    text = write(tmp_path / "a.toml").read_text()
    head, claim = text.split("[[claim]]")
    flags = ["arithmetic = true", "from_memory = true", "", "", "", ""]
    blocks = [claim.replace("a-claim", f"c{i}") + flag + "\n" for i, flag in enumerate(flags)]
    (tmp_path / "a.toml").write_text(head + "".join(f"[[claim]]{block}" for block in blocks))
    hashes = [one.expected_hash for one in read_source(tmp_path / "a.toml").claim]
    blocks = [re.sub('hash = ".*"', f'hash = "{right}"', block) for block, right in zip(blocks, hashes, strict=True)]
    (tmp_path / "a.toml").write_text(head + "".join(f"[[claim]]{block}" for block in blocks))
    assert [entry.counts for entry in load_ledger([tmp_path / "a.toml"])] == [False, False, True, True, True, False]


def test_a_figure_from_memory_has_no_place() -> None:
    fields = claim_fields({"value": "speedup", "at_least": 2}, where="Table 2", from_memory=True)
    with pytest.raises(ValidationError, match="leave out where or from_memory"):
        Claim.model_validate(fields)


@pytest.mark.parametrize("command", sorted({entry.claim.run for entry in SHIPPED}))
def test_the_commands_of_claims_are_valid(command: str) -> None:
    program, *words = shlex.split(command)
    asked = make_parser().parse_args(words)
    assert (program, asked.verb) == ("efficient-attn", "run")


def test_valid_files_are_read(tmp_path: Path) -> None:
    (only,) = load_ledger([write(tmp_path / "a.toml")])
    assert (only.file, only.source.cite, only.claim.rule.bounds) == ("a", "A 2026", (2.0, float("inf")))


@pytest.mark.parametrize("hash", ["", "0123456789ab"])
def test_a_wrong_hash_is_an_error(hash: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", hash=hash)
    assert read_source(path).claim  # what only checks may read it
    with pytest.raises(UsageError, match=r"claim 'a-claim' has .*`efficient-attn claims --check` prints"):
        load_ledger([path])


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "another"},
        {"date": dt.date(2026, 1, 2)},
        {"rows": {"variant": "performer"}},
        {"regime": {"seq_len": {"at_least": 2}}},
        {"rule": {"value": "speedup", "at_least": 2.1}},
    ],
)
def test_the_hash_covers_everything_that_decides_a_verdict(changed: dict[str, Any]) -> None:
    rule = {"value": "speedup", "at_least": 2.0}
    before, after = Claim(**claim_fields(rule)), Claim(**(claim_fields(rule) | changed))
    assert before.expected_hash != after.expected_hash
    assert before.expected_hash == Claim(**claim_fields(rule, claim="In other words.")).expected_hash


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"value": "latency_ms", "at_least": 0}, "can never fail"),
        ({"value": "accuracy", "between": [0, 1]}, "can never fail"),
        ({"value": "latency_ms"}, "can never fail"),
        ({"value": "accuracy", "at_least": 1.5}, "can never hold"),
        ({"value": "latency_ms", "at_most": -1}, "can never hold"),
        ({"value": "speedup", "between": [3, 2]}, "can never hold"),
        ({"value": "speedup", "between": [1, 2], "at_least": 1}, "between cannot be combined"),
        ({"value": "variant", "at_least": 1}, "variant holds strings"),
        ({"value": "speedupp", "at_least": 2}, "did you mean 'speedup'"),
        ({"value": "latency_ms", "against": {"varient": "full"}, "at_least": 2}, "did you mean 'variant'"),
        ({"value": "latency_ms", "over": "seqlen", "at_least": 2}, "did you mean 'seq_len'"),
        ({"value": "latency_ms", "at_least": float("inf")}, "finite"),
    ],
)
def test_rules_without_content_are_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, ValidationError), match=message):
        Claim.model_validate(claim_fields(rule))


BOUNDLESS = {"value": "latency_ms", "over": "seq_len", "at_least": 0}
RATIO = {"value": "accuracy", "against": {"variant": "full"}, "at_most": 1}


@pytest.mark.parametrize("rule", [BOUNDLESS, RATIO])
def test_exponents_and_ratios_have_bounds_of_their_own(rule: dict[str, Any]) -> None:
    assert Claim.model_validate(claim_fields(rule)).rule.bounds


@pytest.mark.parametrize(
    ("rule", "more", "message"),
    [
        ('value = "speedup", atleast = 2', "", "unknown key 'atleast'; did you mean 'at_least'?"),
        ('value = "speedup", at_least = 2', 'regimes = { mode = "forward" }', "did you mean 'regime'?"),
        ('value = "speedup", at_least = 2', "regime = { seq_len = { atleast = 2 } }", "did you mean 'at_least'?"),
        ('value = "speedup", at_least = 2', "regime = { seq_len = { at_least = 3, at_most = 2 } }", "no number is"),
        ('value = "speedup", at_least = "2"', "", "at_least: Input should be a valid number, got '2'"),
        ('value = "speedup", at_least = 2, how = "evry"', "", "did you mean 'every'?"),
        ("value = ", "", "not valid TOML"),
    ],
)
def test_mistakes_are_stated_in_one_line(rule: str, more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_ledger([write(tmp_path / "a.toml", rule, hash="", more=more)])
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "a.toml"))
    assert "\n" not in str(caught.value)


def test_the_claim_in_the_documentation_is_valid(tmp_path: Path) -> None:
    page = Path(__file__).parents[4] / "docs" / "concepts" / "claims.md"
    (block,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(block)
    assert list_wrong_hashes(read_source(tmp_path / "mine.toml")) == []


def test_duplicate_ids_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="duplicate id 'a-claim'"):
        load_ledger([write(tmp_path / "a.toml"), write(tmp_path / "b.toml")])
    with pytest.raises(UsageError, match="no such file"):
        load_ledger([tmp_path / "none.toml"])


def test_task_columns_must_exist() -> None:
    claim = Claim.model_validate(claim_fields({"value": "train.at_20", "at_least": 0.5}))
    check_task_columns(claim, ["train.at_*"], "a.toml")
    with pytest.raises(UsageError, match=r"a.toml: claim 'a-claim': unknown column 'train.at_20'"):
        check_task_columns(claim, ["train.score"], "a.toml")


def test_a_date_without_a_time_means_the_end_of_the_day() -> None:
    day = Claim.model_validate(claim_fields({"value": "speedup", "at_least": 2}))
    assert day.created_at == dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    hour = dt.datetime(2026, 1, 1, 6)
    timed = Claim.model_validate(claim_fields({"value": "speedup", "at_least": 2}, date=hour))
    assert timed.created_at == hour.replace(tzinfo=dt.UTC)
