"""The text of conformance tests: failures first, counts last, everything else on request."""

from __future__ import annotations

import io
from typing import Any

import pytest

import efficient_attn as ea
from efficient_attn.cli import check_text
from efficient_attn.cli.isolated_checks import CheckResults
from efficient_attn.testing import Check, Outcome
from efficient_attn.testing.check import Status

Capture = pytest.CaptureFixture[str]


def outcome(name: str, status: Status, reason: str = "", lines: tuple[str, ...] = ()) -> Outcome:
    check = Check(name, "It holds.", lambda subject: None)
    return Outcome(check, status, reason, "property: It holds." if status == "failed" else "", lines)


def shown(capsys: Capture, *outcomes: Outcome, verbose: bool = False, **fields: Any) -> list[str]:
    check_text.show_checks({"mine": CheckResults([*outcomes], **fields)}, 3, verbose=verbose)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    return text.splitlines()


def test_failures_come_first_and_counts_last(capsys: Capture) -> None:
    outcomes = (
        outcome("one", "passed"),
        outcome("two", "failed", "off by 2, N=7"),
        outcome("three", "not_claimed", "no"),
    )
    assert shown(capsys, *outcomes, limits=ea.Traits(decode=False).unclaimed) == [
        "FAILED two of mine",
        "  off by 2, N=7",
        "  property: It holds.",
        "",
        "mine: 1 passed, 1 failed, 1 do not apply; limits: no decoding (seed 3)",
    ]


def test_checks_that_printed_or_did_not_run_are_counted(capsys: Capture) -> None:
    limits = ea.Traits(decode=False).unclaimed
    (line,) = shown(capsys, outcome("one", "passed"), printed=4, left_out=85, limits=limits)
    assert line == "mine: 1 passed, 85 did not run; 4 printed text (-v shows it); limits: no decoding (seed 3)"


def test_what_does_not_apply_is_shown_on_request(capsys: Capture) -> None:
    outcomes = outcome("one", "passed", "D=13 is refused"), outcome("three", "not_claimed", "no decoding")
    assert shown(capsys, *outcomes) == ["mine: 1 passed, 1 do not apply (seed 3)"]
    text = "\n".join(shown(capsys, *outcomes, verbose=True))
    assert "one    passed          D=13 is refused" in text
    assert "three  does not apply  no decoding" in text


def test_causes_come_before_their_consequences(capsys: Capture) -> None:
    names = ("threads", "padding_garbage", "modes", "state_dict", "causality", "growth_is_measured")
    lines = shown(capsys, *(outcome(name, "failed") for name in names))
    heads = [line for line in lines if line.startswith("FAILED")]
    assert heads == [f"FAILED {name} of mine" for name in ("causality", "growth_is_measured", "threads")]
    (others,) = (line for line in lines if "also failed" in line)
    assert others.endswith("(-v shows them): padding_garbage, modes, state_dict")
    lines = shown(capsys, *(outcome(name, "failed") for name in (*names, "output")))
    assert [line for line in lines if line.startswith("FAILED")] == ["FAILED output of mine"]
    lines = shown(capsys, *(outcome(name, "failed") for name in names), verbose=True)
    assert sum(line.startswith("FAILED") for line in lines) == len(names)


def test_very_many_failures_are_counted(capsys: Capture) -> None:
    lines = shown(capsys, *(outcome(f"check_{i}", "failed") for i in range(40)))
    assert "mine also failed, perhaps for the same reasons (-v shows them): 37 other checks" in lines


def test_lines_to_write_keep_their_indentation(capsys: Capture) -> None:
    lines = shown(capsys, outcome("one", "failed", lines=("traits = ea.Traits(", "    decode=False,", ")")))
    assert "\n    traits = ea.Traits(\n        decode=False,\n    )\n" in "\n".join(lines)


def test_every_mechanism_of_a_file_has_a_line(capsys: Capture) -> None:
    failed = outcome("creation", "failed", "NameError: x")
    check_text.show_checks({"a": CheckResults([outcome("one", "passed")]), "b": CheckResults([failed])}, 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FAILED creation of b"
    assert lines[-2:] == ["a: 1 passed (seed 0)", "b: 1 failed (seed 0)"]


def test_a_terminal_of_80_columns_is_not_exceeded(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    long = outcome("one", "failed", "a word " * 40)
    outcomes = [long, *[outcome(f"check_{i}", "failed") for i in range(12)]]
    check_text.show_checks({"mine": CheckResults(outcomes)}, 0)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > 8


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_hostile_messages_are_one_printable_line(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", out)
    hostile = outcome("one", "failed", "\x1b[31mred\nFAILED\u202e \u00e9\udc80")
    check_text.show_checks({"mine": CheckResults([hostile])}, 0)
    out.seek(0)
    lines = out.read().splitlines()
    accent = "\u00e9" if encoding == "utf-8" else "\\xe9"
    assert lines[1] == f"  [31mred FAILED {accent}"


def test_outcomes_as_json_have_advice_and_lines_if_there_are_any() -> None:
    passed, failed = outcome("one", "passed"), outcome("two", "failed", "no", ("traits = ea.Traits()",))
    assert check_text.outcome_as_json(passed) == {"check": "one", "status": "passed", "reason": ""}
    assert check_text.outcome_as_json(failed) == {
        "check": "two",
        "status": "failed",
        "reason": "no",
        "advice": "property: It holds.",
        "lines": ["traits = ea.Traits()"],
    }
