"""Conformance tests in a process of their own: what a mechanism does to it is a failure, and the rest goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_suites

import efficient_attn as ea
from efficient_attn.cli.isolated_checks import MAX_DEATHS, run_isolated_checks
from efficient_attn.testing import CHECKS, Subject, run_check

PLUGIN = """
import os, sys, time
import torch
import efficient_attn as ea

@ea.register("zz_odd", family="full")
class Odd(ea.SoftmaxAttention):
    '''Does something else to its process at 17 positions.'''

    def __init__(self, *, how: str = "nothing", n: int = 17) -> None:
        super().__init__()
        self.how, self.n = how, n

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
        ("dies", "its process ended: killed by SIGKILL"),
        ("hangs", "it did not end within 2 s: stopped"),
        ("allocates", "allocate"),
    ],
)
def test_what_happens_to_the_process_is_a_failure_and_the_rest_goes_on(how: str, message: str) -> None:
    outcomes = run_isolated_checks(Subject(f"zz_odd:how={how}"), names=("equals_oracle", "dtypes"), limit_s=2.0)
    assert [o.status for o in outcomes] == ["failed", "passed"]
    assert message in outcomes[0].reason


def test_what_is_printed_is_named_and_mixes_with_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = run_isolated_checks(Subject("zz_odd:how=prints"), names=("equals_oracle", "dtypes"))
    assert first.reason.startswith("it printed 'a line a line")
    assert second.reason == ""
    assert capfd.readouterr().out == ""


def test_a_mechanism_whose_every_check_ends_the_process_is_given_up() -> None:
    names = ("equals_oracle", "dtypes", "value_width", "output", "determinism", "pickles", "modes")
    outcomes = run_isolated_checks(Subject("zz_odd:how=dies:n=0"), names=names)
    assert [o.status for o in outcomes] == ["failed"] * MAX_DEATHS
    assert outcomes[-1].reason.endswith("; 2 further checks are left out")


def test_outcomes_are_those_of_the_same_process() -> None:
    names, subject, own = ("output", "sizes_and_pairs", "dropout_drops_weights"), Subject("linear"), Subject("linear")
    isolated = run_isolated_checks(subject, names=names)
    assert isolated == [run_check(c, own) for name in names for c in CHECKS if c.name == name]
    assert subject.met == own.met != []


def test_errors_of_creating_it_are_raised() -> None:
    with pytest.raises(ea.UsageError, match="no_such_option"):
        run_isolated_checks(Subject("linear:no_such_option=1"))
