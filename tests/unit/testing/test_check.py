"""Checks of your own: definition, applicability, and the names of version 0.1."""

from __future__ import annotations

import pytest
import torch

from efficient_attn.instruments.global_state import use_threads
from efficient_attn.testing import Subject, check, run_check


def test_a_check_is_made_of_a_function_with_its_docstring() -> None:
    @check(needs="causal decode", unless="positional", skip_reason=lambda subject: "not today")
    def my_check(subject: Subject) -> None:
        """The property
        holds.

        More about it.
        """

    assert (my_check.name, my_check.meaning) == ("my_check", "The property holds.")
    assert my_check.opt_outs == ("causal=False", "decode=False", "positional=True")
    assert run_check(my_check, Subject("linear")).reason == "not today"
    assert run_check(my_check, Subject("linformer")).reason == "causal is not claimed"


def test_checks_run_with_one_torch_thread() -> None:
    @check(skip_reason=lambda subject: f"{torch.get_num_threads()}")
    def counts_threads(subject: Subject) -> None:
        """The property holds."""

    @check()
    def counts_in_run(subject: Subject) -> str:
        """The property holds."""
        return f"{torch.get_num_threads()}"

    with use_threads(2):
        assert run_check(counts_threads, Subject("linear")).reason == "1"
        assert run_check(counts_in_run, Subject("linear")).reason == "1"
        assert torch.get_num_threads() == 2


def test_deprecated_names_have_their_values_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match="skip_reason"):
        decorate = check(needs="causal", ask=lambda subject: "not today")

    @decorate
    def old_check(subject: Subject) -> None:
        """A property."""

    assert run_check(old_check, Subject("linear")).reason == "not today"
    with pytest.warns(DeprecationWarning, match="Check.ask is now skip_reason"):
        assert old_check.ask is old_check.skip_reason
    with pytest.warns(DeprecationWarning, match="Check.switches is now opt_outs"):
        assert old_check.switches == ("causal=False",)
    subject = Subject("reformer")
    call = subject.draw(subject.shape(20))
    with pytest.warns(DeprecationWarning, match="Call.tied is now shares_qk"):
        assert call.tied is call.shares_qk is True
