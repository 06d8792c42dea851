"""Specs: a string for a mechanism with its options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.errors import UsageError
from efficient_attn.spec import Spec, Union, format_label, list_names, parse

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
texts = st.from_regex(r"[a-zA-Z0-9_.+-]{1,8}", fullmatch=True)
options = st.dictionaries(names.filter(lambda n: n != "backend"), texts, max_size=4)
specs = st.builds(Spec, names, options, st.none() | names)
plain = st.builds(Spec, names, options)


@given(specs)
def test_a_spec_is_parsed_from_its_text(spec: Spec) -> None:
    parsed = Spec.parse(str(spec))
    assert (parsed.name, parsed.options, parsed.backend) == (spec.name, spec.options, spec.backend)


@given(st.lists(plain, min_size=1, max_size=3))
def test_a_union_is_parsed_from_its_text(parts: list[Spec]) -> None:
    parsed = parse("|".join(map(str, parts))).parts
    assert [(s.name, s.options, s.backend) for s in parsed] == [(s.name, s.options, s.backend) for s in parts]


@given(st.lists(plain, min_size=2, max_size=3))
def test_the_text_of_a_union_is_independent_of_order(parts: list[Spec]) -> None:
    union = Union(tuple(parts))
    assert parse("|".join(map(str, parts))) == union
    assert str(parse(str(union))) == str(union) == str(Union(tuple(reversed(parts))))


@given(st.lists(plain, min_size=1, max_size=3), st.sampled_from(["", " (kv_heads=2)", " (cache=cold) (seed=1)"]))
def test_names_of_specs_unions_and_labels(parts: list[Spec], suffix: str) -> None:
    spec = parse("|".join(map(str, parts)))
    assert spec.names == tuple(part.name for part in parts)
    assert spec.parts == tuple(parts)
    assert list_names("|".join(map(str, parts)) + suffix) == spec.names


@given(st.lists(plain, min_size=1, max_size=3))
def test_a_spec_equals_its_text_and_is_parsed_once(parts: list[Spec]) -> None:
    spec = parse("|".join(map(str, parts)))
    assert parse(spec) is spec
    assert spec == str(spec)
    assert hash(spec) == hash(str(spec))
    assert spec != f"{spec}x"
    assert spec not in (None, 1)
    assert f"{spec:>60}" == f"{spec!s:>60}"


def test_specs_of_typed_values_and_of_text_are_equal() -> None:
    assert Spec("x", {"a": 3, "b": None}) == parse("x:b=none:a=3") != parse("x:b=none:a=4")


@given(specs)
def test_without_backend_keeps_name_and_options(spec: Spec) -> None:
    bare = spec.without_backend()
    assert (bare.name, bare.options, bare.backend) == (spec.name, spec.options, None)
    assert str(spec).startswith(str(spec.without_backend()))


def test_a_union_has_no_backend() -> None:
    union = parse("a:x=1|b:y=2")
    assert (union.backend, union.without_backend()) == (None, union)
    for text in ("a:x=1|b:backend=dense", "a:backend=dense|b"):
        with pytest.raises(
            UsageError, match=r"only patterns can be joined by '\|', without a backend; .*=dense has one"
        ):
            parse(text)


def test_with_options_adds_to_a_spec() -> None:
    assert parse("x:a=1").with_options({"b": 2}, "dense") == Spec("x", {"a": "1", "b": 2}, "dense")
    assert parse("x:backend=dense").with_options({}, "dense") == Spec("x", {}, "dense")
    assert parse("a|b").with_options({}) == parse("a|b")


@pytest.mark.parametrize(
    ("text", "options", "backend", "message"),
    [
        ("x:a=1", {"a": 1}, None, "x:a=1: option 'a' is given twice"),
        ("x:backend=fast", {}, "dense", "backend is given twice, as 'fast' and 'dense'"),
        ("b|a", {"x": 1}, None, r"a\|b: options of a union belong to its parts, in the string"),
        ("b|a", {}, "dense", "options of a union belong to its parts"),
    ],
)
def test_conflicting_options_are_reported(
    text: str, options: dict[str, int], backend: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text).with_options(options, backend)


@pytest.mark.parametrize(
    ("spec", "text", "matches"),
    [
        ("x:a=1:b=2", "x:b=2:a=1", True),
        ("x:a=1:b=2", "x", True),
        ("x:a=1:b=2", "x:a=1", False),
        ("x:a=1:backend=dense", "x:a=1", False),
        ("x:a=1|y", "y|x:a=1", True),
        ("x:a=1|y", "x", False),
        ("x", "y", False),
    ],
)
def test_a_spec_matches_its_text_and_its_name(spec: str, text: str, matches: bool) -> None:
    assert parse(spec).matches(text) is matches


@pytest.mark.parametrize(
    ("variant", "backend", "label"),
    [
        ("x:a=1", None, "x:a=1"),
        ("x:a=1", "dense", "x:a=1:backend=dense"),
        ("x:a=1:backend=windows", "windows", "x:a=1:backend=windows"),
        ("x|y", "blocks", "x|y:backend=blocks"),
        ("x:broken", "blocks", "x:broken:backend=blocks"),
    ],
)
def test_a_label_has_the_backend_once(variant: str, backend: str | None, label: str) -> None:
    assert format_label(variant, backend) == label


@pytest.mark.parametrize("label", ["", "|", ":", "x:", "x | y (seed=1)", "x:a= | :=y"])
def test_invalid_labels_are_read_without_errors(label: str) -> None:
    assert len(list_names(label)) == label.count("|") + 1


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


def test_the_backend_is_separate_and_last() -> None:
    spec = Spec.parse(" full:backend=dense:z=1 ")
    assert (spec.name, spec.options, spec.backend) == ("full", {"z": "1"}, "dense")
    assert str(spec) == "full:z=1:backend=dense"


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_invalid_text_is_reported(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text)
