"""What a mechanism refuses does not apply; other errors and refusals of what it declares are failures."""

from __future__ import annotations

from functools import partial

from toy_mechanisms import Multiples, RefusesPadding, Toy

from efficient_attn.testing import Outcome, Subject, run_checks
from efficient_attn.testing.checks import list_checks, padding, precision, reference, size_design
from efficient_attn.testing.probing import find_refused_sizes

CHECKS = list_checks(reference, padding, precision, size_design)


def _run(cls: type[Toy]) -> list[Outcome]:
    return run_checks(lambda dims, seed, backend: cls(), checks=CHECKS)


def test_refused_sizes_do_not_apply_and_others_are_compared() -> None:
    outcomes = _run(Multiples)
    assert [o.reason for o in outcomes if o.status == "failed"] == []
    refused = [o for o in outcomes if "it refuses N=1, N=17, N=130" in o.reason]
    assert refused
    assert {o.status for o in refused} == {"not_claimed"}
    (drawn,) = (o for o in outcomes if o.check is size_design.sizes_and_pairs)
    assert drawn.status == "passed"
    assert "drawn calls are refused" in drawn.reason


def test_refusing_what_is_declared_is_a_failure() -> None:
    failed = [o for o in _run(RefusesPadding) if o.status == "failed"]
    assert failed
    assert all("no padding" in o.reason for o in failed)


def test_sizes_that_plain_calls_refuse_are_found() -> None:
    probe = {
        cls: find_refused_sizes(Subject(partial(lambda cls, dims, seed, backend: cls(), cls)))
        for cls in (Toy, Multiples, RefusesPadding)
    }
    assert probe == {Toy: None, Multiples: "it refuses N=1, N=17, N=130", RefusesPadding: None}
