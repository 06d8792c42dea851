"""Sanitized texts."""

from __future__ import annotations

import pytest

from efficient_attn.results.sanitize import sanitize_json, sanitize_line, sanitize_lines

TEXTS = {
    "a b": "a b",
    "\u00e4\u00a0\u4e2d\U0001f600": "\u00e4\u00a0\u4e2d\U0001f600",
    "a\nb\r\nc\td\u2028e": "a b c d e",
    "\x1b[31mred\x1b[0m\x00\x07": "[31mred[0m",
    "half \ud800 and \udcff": "half  and ",
    "\u202egnp.exe\u2066": "gnp.exe",
    "lin\u200bear\ufeff \u061cfull": "linear full",
    "\x85\x9b1m\x7f": " 1m",
}


@pytest.mark.parametrize("text", TEXTS)
def test_unprintable_characters_are_removed(text: str) -> None:
    assert sanitize_line(text) == TEXTS[text]
    sanitize_line(text).encode()
    assert sanitize_line(sanitize_line(text)) == sanitize_line(text)


def test_lines_and_tabs_are_kept_in_multiline_texts() -> None:
    assert sanitize_lines("a = 1\n\tb\x00\n") == "a = 1\n\tb\n"


def test_all_texts_of_a_value_are_cleaned() -> None:
    value = {"a\x00": ["\udcff", 1, None, {"b": "c\x1b"}], "d": 1.5}
    assert sanitize_json(value) == {"a": ["", 1, None, {"b": "c"}], "d": 1.5}
