"""Parts of a plan: every case in one part, groups and chains whole, times balanced, and other plans refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_suites
from tiny_suites import SEVERAL, TRAINING

from efficient_attn.bench.case import Case, group_cases
from efficient_attn.bench.measuring.parallel import find_chain
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.bench.planning.plan_split import PlanPart, read_part, split_plan
from efficient_attn.bench.planning.suite import parse_suite
from efficient_attn.errors import UsageError
from efficient_attn.tasks import TABLE

PATH = Path("parts/1.json")


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return tiny_suites.plan(SEVERAL)


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_every_case_is_in_one_part_with_its_group(cases: list[Case], count: int) -> None:
    parts = split_plan(cases, count, ["several.toml"])
    assert [(part.part, part.of, part.arguments) for part in parts] == [
        (number, count, ("several.toml",)) for number in range(1, count + 1)
    ]
    selected = [part.select(cases, PATH) for part in parts]
    assert sorted(case.key for part in selected for case in part) == sorted(case.key for case in cases)
    assert all(selected)
    for _, members in group_cases(cases):
        assert sum(members[0] in part for part in selected) == 1
        assert any(set(members) <= set(part) for part in selected)
    for part in selected:
        assert part == [case for case in cases if case in part], "in the order of the plan"


def test_a_plan_is_split_alike_again(cases: list[Case]) -> None:
    assert split_plan(cases, 3, ["x"]) == split_plan(cases, 3, ["x"])


def test_parts_take_about_the_same_time() -> None:
    cases = tiny_suites.plan(SEVERAL, axes={"seq_len": [64, 128, 4096, 8192], "causal": [False, True]})
    parts = [part.select(cases, PATH) for part in split_plan(cases, 2, [])]
    counts = [sum(case.group.config.seq_len == 8192 for case in part) for part in parts]
    assert counts[0] == counts[1] > 0


def test_trainings_that_depend_on_each_other_are_in_one_part() -> None:
    cases = make_plan(parse_suite(TRAINING, "training", TABLE), Overrides())
    chains = [{find_chain(case) for case in part.select(cases, PATH)} for part in split_plan(cases, 2, [])]
    assert [len(chain) for chain in chains] == [1, 1]
    assert chains[0] != chains[1]
    with pytest.raises(UsageError, match=r"^plan: --split 3: the plan has 2 groups of cases that run together"):
        split_plan(cases, 3, [])


def test_a_part_of_another_plan_is_refused(cases: list[Case]) -> None:
    (part,) = split_plan(cases, 1, [])
    fewer = tiny_suites.plan(SEVERAL, axes={"seq_len": [16]})
    with pytest.raises(UsageError, match=r"^parts/1.json: .* not those of the plan \(\d+ cases differ\); use the same"):
        part.select(fewer, PATH)
    with pytest.raises(UsageError, match="their order differs"):
        part.select(cases[::-1], PATH)


def test_a_part_is_read_as_it_was_written(cases: list[Case], tmp_path: Path) -> None:
    (part,) = split_plan(cases, 1, ["quickstart", "--seq-len", "64"])
    path = tmp_path / "1.json"
    path.write_text(part.model_dump_json())
    assert read_part(path) == part


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a part of a plan"),
        (b"\xff", "not a part of a plan"),
        (b"[" * 10_000, "not a part of a plan"),
        (b"[]", "not a part of a plan"),
        (b'{"arguments": ["x"], "part": 0, "of": 1, "cases": [], "order": []}', "part: "),
        (b'{"arguments": ["x"], "part": 1, "of": 1, "cases": ["../x"], "order": []}', "cases.0: "),
        (b'{"version": 2, "arguments": ["x"], "part": 1, "of": 1, "cases": [], "order": []}', "version: "),
        (b'{"arguments": ["x"], "part": 1, "of": 1, "cases": [], "order": [], "more": 1}', "more: "),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"1\.json: ") as error:
        read_part(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: No such file"):
        read_part(tmp_path / "none.json")


def test_no_more_parts_than_groups(cases: list[Case]) -> None:
    with pytest.raises(UsageError, match="--split 7: the plan has 6 groups of cases that run together; give at most 6"):
        split_plan(cases, 7, [])


def test_parts_cannot_be_altered(cases: list[Case]) -> None:
    known: dict[str, Any] = split_plan(cases, 2, [])[0].model_dump()
    altered = PlanPart(**known | {"order": known["order"][1:]})
    with pytest.raises(UsageError, match="not those of the plan"):
        altered.select(cases, PATH)
