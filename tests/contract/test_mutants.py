"""The conformance tests themselves: every planted bug is detected in every mechanism that declares what it breaks."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from planted_bugs import MUTANTS
from planted_bugs.kill_matrix import Kill, kill_matrix
from planted_bugs.planting import Mutant
from specs import SPECS

from efficient_attn.testing import Subject

FAST = [spec for spec in SPECS if "backend=dense" not in spec]
KINDS = list(dict.fromkeys(mutant.kind for mutant in MUTANTS))
subject = cache(Subject)


@pytest.mark.slow
@pytest.mark.sampled(150)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", FAST)
def test_every_planted_bug_is_detected(spec: str, kind: str, request: pytest.FixtureRequest) -> None:
    mutants = [m for m in MUTANTS if m.kind == kind]
    if any(m.thorough for m in mutants):  # a bug may take a minute: three that change with the sample
        mutants = Random(f"{spec} {request.config.option.sample}").sample(mutants, 3)
    kills = kill_matrix([subject(spec)], mutants=mutants)
    missed = [kill.mutant for kill in kills if kill.status == "missed"]
    assert not missed, f"planted bugs that no check detected: {missed}\n{table(kills)}"
    # most classic bugs must apply, so that a mechanism cannot pass by declaring nothing
    assert kind != "classics" or sum(kill.status == "caught" for kill in kills) > len(kills) // 2, table(kills)


def table(kills: list[Kill]) -> str:
    """One line for each bug: the check that caught it first, or why it does not apply."""
    return "\n".join(f"{kill.mutant:24}{kill.status:16}{kill.by}" for kill in kills)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_planted_bug_applies_somewhere(mutant: Mutant) -> None:
    """A bug that applies to no mechanism would test nothing."""
    assert any(mutant.why_not(subject(spec)) is None for spec in FAST)


def test_planting_does_not_change_the_subject() -> None:
    subject = Subject("full")
    kind = type(subject.attn)
    planted = MUTANTS[0].planted(subject)
    assert type(planted.attn) is not kind
    assert isinstance(planted.attn, kind)
    assert type(subject.attn) is kind
    assert type(subject.make(subject.shape(4))) is kind
