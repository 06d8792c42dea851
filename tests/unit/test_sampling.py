"""Sampling of tests: samples differ, are reproducible, and together contain every test."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sampling import SAMPLES, choose_sample, commit_number

GROUPS = {
    (f"test_{share}", share): [f"test_{share}[{i}]" for i in range(count)]
    for share, count in ((2, 5), (3, 40), (7, 100), (10, 3), (60, 61), (150, 200))
}


def test_all_samples_together_contain_every_test() -> None:
    counts = Counter(name for k in range(SAMPLES) for name in choose_sample(GROUPS, k))
    for (_, share), names in GROUPS.items():
        expected = {len(range(residue, SAMPLES, share)) for residue in range(share)}
        assert {counts[name] for name in names} <= expected - {0}


@pytest.mark.parametrize("share", [2, 3, 7, 60, 150])
def test_consecutive_samples_of_a_share_are_a_partition(share: int) -> None:
    group = {key: names for key, names in GROUPS.items() if key[1] == share}
    (names,) = group.values()
    samples = [choose_sample(group, k) for k in range(share)]
    assert sorted(name for sample in samples for name in sample) == sorted(names)


def test_a_sample_is_reproducible_and_the_next_one_differs() -> None:
    assert choose_sample(GROUPS, 17) == choose_sample(GROUPS, 17) != choose_sample(GROUPS, 18)


def test_the_commit_chooses_the_sample(tmp_path: Path) -> None:
    def git(*command: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(
            ["git", *identity, *command], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert commit_number(tmp_path) == 0  # no repository
    git("init", "-q")
    assert commit_number(tmp_path) == 0  # no commit
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert commit_number(tmp_path) == int(git("rev-parse", "HEAD"), 16)


def test_without_git_the_first_sample_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_number(Path(__file__).parent) == 0


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", range(6))
def test_tests_of_one_fixture_are_in_the_same_samples(number: int) -> None:
    """Those that share a folder of hostile names, which takes longer to make than to test."""
    file = "tests/cli/test_cli_hostile.py"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", file]
    collected = [
        {
            line
            for line in subprocess.run([*command, *extra], capture_output=True, text=True).stdout.split("\n")
            if file in line
        }
        for extra in ((), ("--sample", str(number)))
    ]
    assert len(collected[0]) > 10
    assert collected[1] == (collected[0] if choose_sample({("cli_hostile.folder", 5): ["it"]}, number) else set())


def test_groups_of_one_test_are_spread_over_the_samples() -> None:
    groups = {(f"test_{i}", 4): [f"test_{i}"] for i in range(400)}
    assert all(70 < len(choose_sample(groups, number)) < 130 for number in range(4))
