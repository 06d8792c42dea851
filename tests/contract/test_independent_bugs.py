"""Bugs by somebody who had not read the conformance tests, which these missed at first: the check that finds each."""

from __future__ import annotations

import pytest
from planted_bugs import MUTANTS
from planted_bugs.kill_matrix import kill_matrix

from efficient_attn.testing import CHECKS, Subject

MISSED_AT_FIRST = {
    "finite_padding_bias": "gqa",
    "maximum_from_zero": "gqa",
    "sink_missing_in_steps": "full",
    "cast_kept_for_inference": "general",
    "state_on_the_cpu": "gqa",
    "gradient_of_the_last_heads": "mqa",
    "scale_without_rotary_width": "mla",
    "absorbed_once": "mla",
    "window_in_eights": "sliding_window",
    "half_directions": "reformer",
    "gates_of_hidden_keys": "random_feature",
}


@pytest.mark.parametrize("name", MISSED_AT_FIRST)
def test_a_bug_is_found_by_the_check_for_it(name: str) -> None:
    subject = Subject(MISSED_AT_FIRST[name])
    (mutant,) = (m for m in MUTANTS if m.name == name)
    (check,) = (c for c in CHECKS if c.name in mutant.suspects)
    (kill,) = kill_matrix([subject], mutants=[mutant], checks=[check])
    assert (kill.status, kill.by) == ("caught", check.name)
