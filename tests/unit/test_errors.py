"""The message for unknown names, and the base classes of errors."""

from __future__ import annotations

import pytest

from efficient_attn.errors import UnsupportedError, UsageError, make_unknown_error


def test_the_nearest_choice_and_the_location_are_named() -> None:
    error = make_unknown_error("mechanism", "ful", ["linear", "full"], where="suite.toml: variant")
    assert isinstance(error, UsageError)
    assert str(error) == "suite.toml: variant: unknown mechanism 'ful'; did you mean 'full'? (choices: full, linear)"


def test_without_a_near_name_all_choices_are_listed() -> None:
    many = [f"option{i}" for i in range(30)]
    text = str(make_unknown_error("thing", "zzzz", many))
    assert "did you mean" not in text
    assert all(name in text for name in many)


def test_many_choices_are_not_listed_with_a_near_one() -> None:
    text = str(make_unknown_error("thing", "option12x", [f"option{i}" for i in range(30)]))
    assert "did you mean 'option12'?" in text
    assert "choices" not in text


def test_an_empty_list_of_choices_is_reported() -> None:
    assert str(make_unknown_error("option", "x", [])) == "unknown option 'x' (choices: none)"


def test_names_of_other_types_are_formatted_as_text() -> None:
    assert "'7'" in str(make_unknown_error("key", 7, ["a"]))


@pytest.mark.parametrize(("kind", "base"), [(UsageError, ValueError), (UnsupportedError, RuntimeError)])
def test_base_classes_of_errors(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)
