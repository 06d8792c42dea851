"""How a run's command is told: no folders that only its author has."""

from __future__ import annotations

import pytest

from efficient_attn.report.command_line import format_command

RUN = ["efficient-attn", "run", "quickstart"]


@pytest.mark.parametrize(
    ("more", "told"),
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
def test_absolute_paths_are_shortened(more: list[str], told: str) -> None:
    assert format_command([*RUN, *more]) == " ".join(RUN) + told


def test_a_suite_is_identified_by_its_name() -> None:
    assert format_command(["efficient-attn", "run", "/tmp/x/my.toml"]) == "efficient-attn run my.toml"


def test_it_is_one_line() -> None:
    assert format_command([*RUN, "--set", "a=\tb\nc"]) == "efficient-attn run quickstart --set 'a= b c'"


def test_what_is_no_list_stays() -> None:
    assert format_command("run") == "run"
    assert format_command(None) == ""
