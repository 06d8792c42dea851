"""JUnit XML: the elements and attributes that Jenkins and GitLab read, and text that XML does not allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from comparisons import ALL, BROKEN, SAME, SLOWER, make_comparison

from efficient_attn.report.junit import as_junit

# of Jenkins' schema (jenkinsci/xunit-plugin, junit-10.xsd)
ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors", "skipped"},
    "testsuite": {"name", "time", "tests", "failures", "errors", "skipped"},
    "testcase": {"name", "time", "classname"},
    "failure": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"skipped", "failure", "system-out"},
}


def test_elements_attributes_and_counts_are_those_of_the_schema() -> None:
    root = ElementTree.fromstring(as_junit(make_comparison(*ALL, only_in_base=("s/gone",), failing=("s/bad",))))
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.keys()) == ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
    (suite,) = root
    assert {name: int(suite.get(name, "")) for name in ("tests", "failures", "errors", "skipped")} == {
        **{"tests": len(suite), "failures": len(suite.findall("*/failure")), "errors": 0},
        "skipped": len(suite.findall("*/skipped")),
    }
    assert float(suite.get("time", "")) == pytest.approx(sum(float(case.get("time", "")) for case in suite))


def test_regressions_fail_and_what_cannot_be_compared_is_skipped() -> None:
    root = ElementTree.fromstring(as_junit(make_comparison(*ALL, only_in_new=("s/new",))))
    failures = {c.get("name"): c.find("failure") for c in root.iter("testcase") if c.find("failure") is not None}
    assert list(failures) == ["a|b", "s/worst", "s/slower"]
    assert failures["s/slower"].get("message") == failures["s/slower"].text == "1.25x slower (1.18-1.33)"  # type: ignore[union-attr]
    assert failures["a|b"].get("type") == "broken"  # type: ignore[union-attr]
    skipped = {c.get("name"): c[0].get("message") for c in root.iter("testcase") if c.find("skipped") is not None}
    assert skipped == {"s/single": "inconclusive; a single round", "s/new": "only in new"}


def test_paths_are_relative_to_the_working_folder() -> None:
    failed = replace(BROKEN, reason=f"OSError: {Path.cwd()}/data/q.npz is missing")
    base, head = (f"{Path.cwd()}/benchmark/{name}" for name in ("base", "head"))
    comparison = replace(make_comparison(failed), base=base, new=head)
    text = as_junit(comparison)
    assert str(Path.cwd()) not in text
    assert 'name="compare benchmark/base benchmark/head"' in text
    assert "OSError: data/q.npz is missing" in text


@pytest.mark.parametrize(
    ("folder", "text", "expected"),
    [
        ("/work/a", "/mnt/work/a/x.py, /work/a/y.py", "/mnt/work/a/x.py, y.py"),
        ("/work/a", "'/work/a/x' (/work/a/y) file:///work/a/z", "'x' (y) file:///work/a/z"),
        ("/work/a", "/work/a.b/x /work/ab/x", "/work/a.b/x /work/ab/x"),
        ("/work/a+b", "see /work/a+b/x", "see x"),
        ("/", "https://host/x, 7 // 2, /work/a/x.py", "https://host/x, 7 // 2, /work/a/x.py"),
    ],
)
def test_only_the_start_of_a_path_is_left_out(
    folder: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: Path(folder))
    (case,) = ElementTree.fromstring(as_junit(make_comparison(replace(BROKEN, reason=text)))).iter("testcase")
    assert case[0].text == f"broken; {expected}"


def test_times_are_in_seconds_and_classes_are_parts() -> None:
    name = "ci/decoding/decode/linear/n64-b1-h4-kv4-d64/float32-cpu-t1-causal"
    (case,) = ElementTree.fromstring(as_junit(make_comparison(replace(SAME, name=name, new_ms=12.5)))).iter("testcase")
    assert (case.get("classname"), case.get("name"), case.get("time")) == ("ci.decoding", name, "0.012500000")


@pytest.mark.parametrize("text", ['<a b="c">&\'', "]]>", "a\nb\tc", "\x00\x0b\x1b[31m\ufffe", "\ud800", "é 注意 😀"])
def test_hostile_text_is_escaped(text: str) -> None:
    hostile = replace(BROKEN, name=text, reason=text)
    xml = as_junit(make_comparison(hostile, base=text, new=text, only_in_new=(text + "2",)))
    root = ElementTree.fromstring(xml.encode())
    case, only = root.iter("testcase")
    printable = "".join(c for c in text if c >= " " or c in "\t\n")
    for mark in ("\ufffe", "\ud800"):
        printable = printable.replace(mark, "")
    assert case.get("name") == printable
    assert case[0].text == f"broken; {printable}"
    assert only.get("name") == printable + "2"


def test_an_empty_comparison_is_valid() -> None:
    (suite,) = ElementTree.fromstring(as_junit(make_comparison()))
    assert (suite.get("tests"), len(suite), float(suite.get("time", ""))) == ("0", 0, 0.0)


def test_an_extreme_time_stays_a_number() -> None:
    assert 'time="1.000000000"' in as_junit(make_comparison(replace(SLOWER, new_ms=1e3)))
