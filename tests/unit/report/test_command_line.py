"""Commands of runs in reports: printed without the author's folders."""

from __future__ import annotations

import pytest

from efficient_attn.report.command_line import format_command

RUN = ["efficient-attn", "run", "quickstart"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--out", "/tmp/x/pub"], ""),
        (["--out=/tmp/x/pub", "--quick"], " --quick"),
        (["--out", "C:\\Temp\\x"], ""),
        (["--out", "my results"], " --out 'my results'"),
        (["--plugin", "/home/me/my_attn.py", "--seed", "1"], " --plugin my_attn.py --seed 1"),
        (["--plugin=/home/me/my_attn.py"], " --plugin=my_attn.py"),
        (["--set", "a=/b"], " --set a=/b"),
        (["--out"], " --out ''"),
    ],
)
def test_absolute_paths_are_shortened(arguments: list[str], expected: str) -> None:
    assert format_command([*RUN, *arguments]) == " ".join(RUN) + expected


def test_a_suite_is_identified_by_its_name() -> None:
    assert format_command(["efficient-attn", "run", "/tmp/x/my.toml"]) == "efficient-attn run my.toml"


def test_the_command_is_printed_on_one_line() -> None:
    assert format_command([*RUN, "--set", "a=\tb\nc"]) == "efficient-attn run quickstart --set 'a= b c'"


def test_strings_are_unchanged_and_none_is_empty() -> None:
    assert format_command("run") == "run"
    assert format_command(None) == ""
