"""Conformance tests in a process of their own: what a mechanism does to it is a failure, and the rest goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_suites

import efficient_attn as ea
from efficient_attn.cli.isolated_checks import KEPT_CHARACTERS, MAX_DEATHS, _Beginning, run_isolated_checks
from efficient_attn.testing import CHECKS, Subject, run_check
from efficient_attn.testing.checks.size_design import LONG, list_coverage

PLUGIN = """
import os, sys, time, traceback
import torch
import efficient_attn as ea

@ea.register("zz_odd", family="full")
class Odd(ea.SoftmaxAttention):
    '''Does something else to its process at 17 positions.'''

    def __init__(self, *, how: str = "nothing", n: int = 17) -> None:
        super().__init__()
        self.how, self.n = how, n
        if how == "exits_at_once":
            raise SystemExit("bye")
        if how.endswith("_in_listing") and any("list_coverage" in s.name for s in traceback.extract_stack()):
            if how.startswith("raises"):
                raise ValueError("no pairs")
            os._exit(7)

    def compute(self, q, k, v, mask, **inputs):
        if self.n in (0, q.shape[2]):
            if self.how == "exits":
                sys.exit(3)
            if self.how == "dies":
                os.kill(os.getpid(), 9)
            if self.how == "hangs":
                time.sleep(100)
            if self.how == "prints":
                print("a line")
            if self.how == "prints_much":
                print("x" * 5_000_000)
            if self.how == "interrupts":
                raise KeyboardInterrupt
            if self.how == "closes":
                raise GeneratorExit("done")
            if self.how == "closes_stdout":
                sys.stdout.close()
            if self.how == "forks":
                os.fork()
            if self.how == "allocates":
                torch.ones(2**31)
        return super().compute(q, k, v, mask, **inputs)
"""


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path) -> Iterator[None]:
    path = tmp_path / "odd_plugin.py"
    path.write_text(PLUGIN)
    with tiny_suites.isolated_registry():
        ea.load_plugin(str(path))
        yield


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exits", "it ended the program: SystemExit: 3"),
        ("interrupts", "it ended the program: KeyboardInterrupt: (odd_plugin.py, line 33)"),
        ("closes", "it ended the program: GeneratorExit: done (odd_plugin.py, line 35)"),
        ("dies", "its process ended: killed by SIGKILL (seed 3)"),
        ("hangs", "it did not end within 2 s: stopped"),
        ("allocates", "allocate"),
    ],
)
def test_what_happens_to_the_process_is_a_failure_and_the_rest_goes_on(how: str, message: str) -> None:
    subject = Subject(f"zz_odd:how={how}", seed=3)
    outcomes = run_isolated_checks(subject, names=("equals_oracle", "dtypes"), limit_s=2.0).outcomes
    assert [o.status for o in outcomes] == ["failed", "passed"]
    assert message in outcomes[0].reason
    assert outcomes[0].advice.startswith("property: ")


def test_a_constructor_that_ends_the_program_is_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    (outcome,) = run_isolated_checks(Subject("zz_odd:how=exits_at_once")).outcomes
    assert (outcome.check.name, outcome.status) == ("declared_traits", "failed")
    assert outcome.reason.startswith("it ended the program: SystemExit: bye (odd_plugin.py, line ")
    assert capfd.readouterr() == ("", "")


def test_what_is_printed_is_named_and_mixes_with_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    results = run_isolated_checks(Subject("zz_odd:how=prints"), names=("equals_oracle", "dtypes"))
    first, second = results.outcomes
    assert first.reason.startswith("it printed 'a line a line")
    assert second.reason == ""
    assert results.printed == 1
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("how", ["prints_much", "closes_stdout"])
def test_megabytes_of_text_and_a_closed_output_end_no_check(how: str) -> None:
    results = run_isolated_checks(Subject(f"zz_odd:how={how}"), names=("equals_oracle", "dtypes"))
    assert [o.status for o in results.outcomes] == ["passed", "passed"]
    assert results.printed == (how == "prints_much")


def test_only_the_beginning_of_printed_text_is_kept() -> None:
    printed = _Beginning()
    for _ in range(3):
        assert printed.write("x" * 800) == 800
    assert printed.getvalue() == "x" * KEPT_CHARACTERS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
@pytest.mark.sampled(4)
def test_copies_of_the_process_that_a_mechanism_forks_end(capfd: pytest.CaptureFixture[str]) -> None:
    names = ("equals_oracle", "dtypes", "value_width", "output", "determinism")
    outcomes = run_isolated_checks(Subject("zz_odd:how=forks:n=0"), names=names, limit_s=30.0).outcomes
    assert [o.check.name for o in outcomes] == list(names)
    assert {o.status for o in outcomes} == {"passed"}
    assert capfd.readouterr() == ("", "")


def test_a_mechanism_whose_every_check_ends_the_process_is_given_up() -> None:
    names = ("equals_oracle", "dtypes", "value_width", "output", "determinism", "pickles", "modes")
    results = run_isolated_checks(Subject("zz_odd:how=dies:n=0"), names=names)
    assert [o.status for o in results.outcomes] == ["failed"] * MAX_DEATHS
    assert results.outcomes[-1].reason.endswith("; 2 further checks are left out")
    assert results.left_out == 2


@pytest.mark.sampled(4)
def test_outcomes_are_those_of_the_same_process() -> None:
    names, own = ("output", "sizes_and_pairs", "dropout_drops_weights"), Subject("linear")
    results = run_isolated_checks(Subject("linear"), names=names, coverage=True)
    assert results.outcomes == [run_check(c, own) for name in names for c in CHECKS if c.name == name]
    assert results.limits == own.traits.unclaimed
    assert results.coverage == list(list_coverage(own))
    assert sum(row[-1] for row in results.coverage or ()) > 0


def test_the_listed_pairs_survive_a_later_end_of_the_process() -> None:
    names = ("sizes_and_pairs", "long_sequence")
    results = run_isolated_checks(Subject(f"zz_odd:how=dies:n={LONG}"), names=names, coverage=True)
    assert [o.status for o in results.outcomes] == ["passed", "failed"]
    assert sum(row[-1] for row in results.coverage or ()) > 0


@pytest.mark.parametrize(
    ("how", "reason"),
    [("raises", "ValueError: no pairs"), ("dies", "its process ended: the process exited with code 7")],
)
def test_a_failure_while_pairs_are_listed_is_the_reason(how: str, reason: str) -> None:
    subject, names = Subject(f"zz_odd:how={how}_in_listing"), ("sizes_and_pairs", "dtypes")
    results = run_isolated_checks(subject, names=names, coverage=True)
    assert [o.status for o in results.outcomes] == ["passed", "passed"]
    assert results.coverage is None
    assert results.no_coverage.startswith(f"listing the pairs failed: {reason}")


def test_a_check_of_pairs_that_ends_the_process_has_no_coverage() -> None:
    names = ("sizes_and_pairs", "pickles")
    results = run_isolated_checks(Subject("zz_odd:how=dies:n=0"), names=names, coverage=True)
    assert (results.coverage, results.no_coverage) == (None, "sizes_and_pairs did not finish")


def test_errors_of_creating_it_are_raised() -> None:
    with pytest.raises(ea.UsageError, match="no_such_option"):
        run_isolated_checks(Subject("linear:no_such_option=1"))
