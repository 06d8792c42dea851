"""What a mechanism refuses does not apply; other errors and refusals of what it declares are failures."""

from __future__ import annotations

from toy_mechanisms import Multiples, RefusesPadding, Toy

import efficient_attn as ea
from efficient_attn.testing import Outcome, Subject, run_checks
from efficient_attn.testing.checks import list_checks, padding, precision, reference, size_design
from efficient_attn.testing.probing import is_refused_size

CHECKS = list_checks(reference, padding, precision, size_design)


def _run(cls: type[Toy]) -> list[Outcome]:
    return run_checks(lambda dims, seed, backend: cls(), checks=CHECKS)


def test_refused_sizes_do_not_apply_and_others_are_compared() -> None:
    outcomes = _run(Multiples)
    assert [o.reason for o in outcomes if o.status == "failed"] == []
    refused = [o for o in outcomes if "it takes multiples of 16 positions" in o.reason]
    assert refused
    assert {o.status for o in refused} == {"not_claimed"}
    (drawn,) = (o for o in outcomes if o.check is size_design.sizes_and_pairs)
    assert drawn.status == "passed"
    assert "drawn calls are refused" in drawn.reason


def test_refusing_what_is_declared_is_a_failure() -> None:
    failed = [o for o in _run(RefusesPadding) if o.status == "failed"]
    assert failed
    assert all("no padding" in o.reason for o in failed)


def test_only_the_message_for_sizes_is_a_refusal_of_sizes() -> None:
    subject = Subject(lambda dims, seed, backend: Multiples())
    assert is_refused_size(subject, ea.UnsupportedError("it takes multiples of 16 positions, not 33 over 7"))
    assert not is_refused_size(subject, ea.UnsupportedError("no bfloat16"))
    plain = Subject(lambda dims, seed, backend: Toy())
    assert not is_refused_size(plain, ea.UnsupportedError("it takes multiples of 16 positions, not 33 over 7"))
