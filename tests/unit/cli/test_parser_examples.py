"""Every verb's help ends with examples, which parse."""

from __future__ import annotations

import shlex

import pytest

from efficient_attn.cli.flags import check_flags
from efficient_attn.cli.parser import EXAMPLES, make_parser

PARSER = make_parser()


def test_every_verb_has_two_or_three_examples() -> None:
    assert EXAMPLES.keys() == PARSER.verbs.keys()
    assert [verb for verb, lines in EXAMPLES.items() if not 2 <= len(lines) <= 3] == []


@pytest.mark.parametrize("verb", EXAMPLES)
def test_examples_parse_and_end_the_help(verb: str) -> None:
    for line in EXAMPLES[verb]:
        words = shlex.split(line)
        check_flags(PARSER, words)
        assert PARSER.parse_args(words).verb == verb
    lines = PARSER.verbs[verb].format_help().strip().splitlines()
    assert lines[-len(EXAMPLES[verb]) :] == [f"  efficient-attn {line}" for line in EXAMPLES[verb]]
    assert max(map(len, lines)) <= 100
