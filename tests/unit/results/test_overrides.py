"""Overrides of sessions: recorded, and for older sessions read from their commands."""

from __future__ import annotations

from typing import Any

import pytest

from efficient_attn.results.overrides import gather_overrides, list_overrides


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("efficient-attn run quickstart", []),
        ("efficient-attn run quickstart --out x --resume --retry-failed --json --timeout 3 --plugin a.py", []),
        ("efficient-attn run quickstart --memory-limit=8GB --start-method spawn", []),
        ("efficient-attn run quickstart --quick --out x", ["--quick"]),
        ("efficient-attn run --quick quickstart --seq-len 64,128", ["--quick", "--seq-len 64,128"]),
        ("efficient-attn run quickstart --variant=full,linear --set a=1", ["--variant full,linear", "--set a=1"]),
        (["efficient-attn", "run", "quickstart", "--activations", "my file.npz"], ["--activations my file.npz"]),
        ("pytest tests -q --quick", []),
        ("efficient-attn", []),
        ([], []),
        (None, []),
    ],
)
def test_overrides_of_older_sessions_are_read_from_their_commands(command: Any, changed: list[str]) -> None:
    assert list(list_overrides({"command": command})) == changed


def test_recorded_overrides_take_precedence_over_the_command() -> None:
    assert list_overrides({"command": "efficient-attn run a --quick", "trial": []}) == ()
    assert list_overrides({"command": "pytest", "trial": ["--quick"]}) == ("--quick",)


def test_a_run_has_the_overrides_of_all_its_sessions() -> None:
    sessions = [{"trial": ["--quick", "--seed 3"]}, {"command": "efficient-attn run a"}, {"trial": ["--quick"]}]
    assert gather_overrides(sessions) == ("--quick", "--seed 3")
