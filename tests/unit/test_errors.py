"""The sentence that says no."""

from __future__ import annotations

import pytest

from efficient_attn.errors import UnsupportedError, UsageError, make_unknown_error


def test_the_nearest_choice_is_named_with_the_place() -> None:
    error = make_unknown_error("mechanism", "ful", ["linear", "full"], where="suite.toml: variant")
    assert isinstance(error, UsageError)
    assert str(error) == "suite.toml: variant: unknown mechanism 'ful'; did you mean 'full'? (choices: full, linear)"


def test_without_a_near_name_all_choices_are_listed() -> None:
    many = [f"option{i}" for i in range(30)]
    text = str(make_unknown_error("thing", "zzzz", many))
    assert "did you mean" not in text
    assert all(name in text for name in many)


def test_many_choices_are_not_listed_beside_a_near_one() -> None:
    text = str(make_unknown_error("thing", "option12x", [f"option{i}" for i in range(30)]))
    assert "did you mean 'option12'?" in text
    assert "choices" not in text


def test_that_there_is_nothing_to_choose_is_said() -> None:
    assert str(make_unknown_error("option", "x", [])) == "unknown option 'x' (choices: none)"


def test_names_that_are_not_text_are_said_as_text() -> None:
    assert "'7'" in str(make_unknown_error("key", 7, ["a"]))


@pytest.mark.parametrize(("kind", "base"), [(UsageError, ValueError), (UnsupportedError, RuntimeError)])
def test_the_errors_are_ones_that_python_programs_catch(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)
