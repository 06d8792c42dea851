"""Annotations of a workflow run and the summary of a job: levels, order, limits, escapes and locations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import BROKEN, FASTER, SAME, SINGLE, SLOWER, UNCLEAR, WORST, make_comparison

from efficient_attn.errors import UsageError
from efficient_attn.report.github_annotations import MAX_SUMMARY_BYTES, append_summary, list_annotations

CASE = "ci/training/forward_backward/{}/n1024-b1-h4-kv4-d64/float32-cpu-t1-causal"
SUITE = """[[part]]
name = "forward"
variant = [{ name = "linear" }]
[[part]]
name = "training"
variant = [
    { name = "full" },
    { name = "linear:x=1" },
]
"""


def test_regressions_are_errors_and_hidden_ones_warnings_the_worst_first() -> None:
    faster_or_not = replace(UNCLEAR, name="s/faster?", low=0.99, high=1.2)
    comparison = make_comparison(SAME, UNCLEAR, FASTER, SLOWER, SINGLE, BROKEN, WORST, faster_or_not)
    assert list_annotations(comparison, ()) == [
        "::error title=Regression::a|b: broken; oom: no memory",
        "::error title=Regression::s/worst: 2.00x slower (1.82-2.22)",
        "::error title=Regression::s/slower: 1.25x slower (1.18-1.33)",
        "::warning title=Inconclusive::s/unclear: inconclusive (0.908-1.10)",
        "::warning title=Inconclusive::s/single: inconclusive; a single round",
    ]


def test_nothing_is_annotated_without_a_regression() -> None:
    assert list_annotations(make_comparison(SAME, FASTER), ()) == []
    assert list_annotations(make_comparison(), ()) == []


def test_unmatched_cases_are_a_notice() -> None:
    comparison = make_comparison(SAME, only_in_base=("s/a", "s/b"), failing=("s/c",))
    assert list_annotations(comparison, ()) == ["::notice title=Not compared::2 only in base, 1 failing in both"]


@pytest.mark.parametrize(("count", "last"), [(10, "s/9"), (11, "2 more in the summary"), (500, "491 more in the")])
def test_at_most_ten_are_listed_of_a_level(count: int, last: str) -> None:
    changes = [replace(SLOWER, name=f"s/{i}", ratio=0.1 + 0.001 * i) for i in range(count)]
    lines = list_annotations(make_comparison(*changes, UNCLEAR), ())
    assert len(lines) == 11
    assert "s/0:" in lines[0]
    assert lines[9].startswith("::error title=Regression::")
    assert last in lines[9]
    assert lines[10].startswith("::warning")


def test_no_text_ends_an_annotation_or_a_property(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b:c%.toml").write_text("")
    hostile = replace(BROKEN, name="100%\r\n::error::x", reason="first\nsecond %0A")
    (line,) = list_annotations(make_comparison(hostile), ("run", "a,b:c%.toml"))
    assert line == (
        "::error file=a%2Cb%3Ac%25.toml,line=1,title=Regression::100%25%0D%0A::error::x: broken; first%0Asecond %250A"
    )


@pytest.mark.parametrize(
    ("variant", "command", "expected"),
    [
        ("linear:x=1", ("run", "ci.toml", "--out", "x"), "file=ci.toml,line=8,"),  # not the one of the other part
        ("full", ("run", "ci.toml"), "file=ci.toml,line=7,"),
        ("mine|full", ("run", "ci.toml", "--plugin", "my_attn.py"), "file=my_attn.py,line=3,"),
        ("mine:x=1", ("run", "ci", "--plugin=my_attn.py"), "file=my_attn.py,line=3,"),
        ("full", ("run", "ci", "--plugin=my_attn.py"), ""),  # a built-in suite has no file in the repository
        ("other", ("run", "ci.toml", "--plugin", "my_attn.py"), "file=ci.toml,line=1,"),
        ("linear", ("run", "gone.toml"), ""),
        ("(", ("run", "ci.toml"), "file=ci.toml,line=1,"),
    ],
)
def test_the_line_that_names_the_mechanism_is_annotated(
    variant: str, command: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ci.toml").write_text(SUITE)
    (tmp_path / "my_attn.py").write_text("import efficient_attn as ea\n\n@ea.register('mine', family='full')\n")
    change = replace(SLOWER, name=CASE.format(variant))
    (line,) = list_annotations(make_comparison(change), command)
    assert line.startswith(f"::error {expected}title=Regression::")


def test_the_summary_is_appended_and_limited(tmp_path: Path) -> None:
    file = tmp_path / "summary.md"
    append_summary(make_comparison(SLOWER), file)
    append_summary(make_comparison(SLOWER), file)
    assert file.read_text().count("| `s/slower` | 1.25x slower") == 2
    long = make_comparison(*(replace(SLOWER, name=f"s/{'x' * 20_000}{i}") for i in range(100)))
    append_summary(long, file)
    assert MAX_SUMMARY_BYTES - 30_000 < file.stat().st_size <= MAX_SUMMARY_BYTES
    assert file.read_text().endswith("The rest does not fit into a summary.\n")
    append_summary(long, file)  # no room is left
    assert file.stat().st_size <= MAX_SUMMARY_BYTES
    with pytest.raises(UsageError, match=r"GITHUB_STEP_SUMMARY=.*: cannot be written: Is a directory"):
        append_summary(long, tmp_path)
