"""Which sessions are trials: as they say themselves, and for older ones as their commands say."""

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
def test_older_sessions_are_judged_by_their_commands(command: Any, changed: list[str]) -> None:
    assert list(list_overrides({"command": command})) == changed


def test_what_a_session_says_counts_more_than_its_command() -> None:
    assert list_overrides({"command": "efficient-attn run a --quick", "trial": []}) == ()
    assert list_overrides({"command": "pytest", "trial": ["--quick"]}) == ("--quick",)


def test_a_run_changed_what_any_of_its_sessions_did() -> None:
    sessions = [{"trial": ["--quick", "--seed 3"]}, {"command": "efficient-attn run a"}, {"trial": ["--quick"]}]
    assert gather_overrides(sessions) == ("--quick", "--seed 3")
