"""The kit itself: every planted bug is caught in every mechanism that makes the promise which it breaks."""

from __future__ import annotations

from functools import cache

import pytest
from specs import SPECS

from efficient_attn.testing import MUTANTS, Kill, Subject, kill_matrix

FAST = [spec for spec in SPECS if "backend=dense" not in spec]


@cache
def matrix() -> list[Kill]:
    return kill_matrix(FAST)


def table() -> str:
    """Mutants down, mechanisms across: which check caught it first."""
    at = {(k.mutant, k.mechanism): {"caught": k.by, "missed": "MISSED"}.get(k.status, "-") for k in matrix()}
    rows = [[m.name, *(at[m.name, spec] for spec in FAST)] for m in MUTANTS]
    return "\n".join("  ".join(f"{cell:24}" for cell in row) for row in [["", *FAST], *rows])


def test_no_mutant_survives() -> None:
    print("\n" + table())
    missed = [f"{k.mutant} in {k.mechanism}" for k in matrix() if k.status == "missed"]
    assert not missed, f"planted bugs that no check saw: {missed}\n{table()}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_applies_somewhere(mutant) -> None:
    """A mutant that fits nothing would prove nothing."""
    assert any(k.status == "caught" for k in matrix() if k.mutant == mutant.name)


@pytest.mark.parametrize("spec", FAST)
def test_a_third_of_all_checks_does_work(spec: str) -> None:
    """No mechanism gets by with checks that are all skipped, and mutants are planted in every one."""
    kills = [k for k in matrix() if k.mechanism == spec]
    assert sum(k.status == "caught" for k in kills) > len(MUTANTS) // 3


def test_planting_leaves_the_subject_alone() -> None:
    subject = Subject("full")
    kind = type(subject.attn)
    planted = MUTANTS[0].planted(subject)
    assert type(planted.attn) is not kind
    assert isinstance(planted.attn, kind)
    assert type(subject.attn) is kind
    assert type(subject.make(subject.shape(4))) is kind
