"""Specs: one string for a mechanism and its options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.errors import UsageError
from efficient_attn.spec import Spec, parse_union

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
texts = st.from_regex(r"[a-zA-Z0-9_.+-]{1,8}", fullmatch=True)
options = st.dictionaries(names.filter(lambda n: n != "backend"), texts, max_size=4)
specs = st.builds(Spec, names, options, st.none() | names)


@given(specs)
def test_text_and_back(spec: Spec) -> None:
    assert Spec.parse(str(spec)) == spec


@given(st.lists(specs, min_size=1, max_size=3))
def test_unions_and_back(parts: list[Spec]) -> None:
    assert parse_union("|".join(map(str, parts))) == tuple(parts)


@given(names, options)
def test_order_of_options_does_not_matter(name: str, given_: dict[str, str]) -> None:
    backwards = dict(reversed(given_.items()))
    assert str(Spec(name, given_)) == str(Spec(name, backwards))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"a": 3}, "x:a=3"),
        ({"b": True, "a": None}, "x:a=none:b=true"),
        ({"a": 0.5}, "x:a=0.5"),
        ({"a": "positive"}, "x:a=positive"),
    ],
)
def test_typed_values_are_written_as_they_are_read(options: dict[str, object], text: str) -> None:
    assert str(Spec("x", options)) == text


def test_backend_is_apart_and_last() -> None:
    spec = Spec.parse(" full:backend=dense:z=1 ")
    assert spec == Spec("full", {"z": "1"}, "dense")
    assert str(spec) == "full:z=1:backend=dense"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x:", "expected option=value after ':', got ''"),
        ("x:a", "expected option=value after ':', got 'a'"),
        ("x:a=", "expected option=value after ':', got 'a='"),
        ("x:=1", "expected option=value after ':', got '=1'"),
        ("x:a=1:a=2", "option 'a' is given twice"),
        (":a=1", "a mechanism's name is missing"),
        ("", "a mechanism's name is missing"),
        ("x|", "a mechanism's name is missing"),
    ],
)
def test_broken_text_is_told(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_union(text)
