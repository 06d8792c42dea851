"""Shared fixtures: one thread, exclusive use of the machine for tests that read the clock, and samples of tests."""

from __future__ import annotations

import fcntl
import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from sampling import SAMPLES, SHARE, choose_sample, commit_number

from efficient_attn.instruments import integrity, timing
from efficient_attn.registry import names

# so that kernel choices are the same everywhere, in commands too; `backend=cpp` still runs C++
os.environ.setdefault("EFFICIENT_ATTN_CALIBRATION", "off")
os.environ.setdefault("EFFICIENT_ATTN_NATIVE", "off")

hypothesis.settings.register_profile("untimed", deadline=None)  # an example may wait for other programs
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"run sample K of {SAMPLES} of the tests marked `sampled`, or `commit`: the sample of this commit"
    parser.addoption("--sample", metavar="K", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Replace ``--sample commit`` by its number, before workers start that could read another commit."""
    value = config.getoption("--sample")
    if value is None:
        return
    number = commit_number(config.rootpath) if value == "commit" else value
    if not str(number).isdigit():
        raise pytest.UsageError(f"--sample takes `commit` or a number from 0 to {SAMPLES - 1}, not {value!r}")
    config.option.sample = int(number) % SAMPLES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    number = config.getoption("--sample")
    if number is not None:  # at the end, as `-q` hides the header
        terminalreporter.write_line(f"sample {number} of {SAMPLES}; to repeat it: SAMPLE={number} tox")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the requested sample of tests marked ``sampled``."""
    number = config.getoption("--sample")
    groups, units = defaultdict(list), defaultdict(list)
    for item in items if number is not None else ():
        if mark := item.get_closest_marker("sampled"):
            share, *rest = mark.args or (SHARE,)
            unit = mark.kwargs.get("together", item.nodeid)
            if unit not in units:
                groups[unit.partition("[")[0], *rest, share].append(unit)
            units[unit].append(item.nodeid)
    deselected = {name for unit in units.keys() - choose_sample(groups, number or 0) for name in units[unit]}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in deselected])
    items[:] = [item for item in items if item.nodeid not in deselected]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test marked ``alone`` while no other worker runs a test."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    folder = Path(item.config._tmp_path_factory.getbasetemp()).parent  # pyright: ignore[reportAttributeAccessIssue]
    with (folder / "door").open("w") as door, (folder / "machine").open("w") as machine:
        # a worker that waits to be alone holds this lock, so that no other test starts
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Seed torch's global generator, so that tests draw the same numbers in any order."""
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _leave_the_registry() -> Iterator[None]:
    """Fail a module whose tests leave other mechanisms registered than before: later tests would find them."""
    before = names()
    yield
    assert names() == before, "register in `tiny_suites.isolated_registry()` or in another process"


@pytest.fixture(scope="module", autouse=True)
def _freeze_garbage_collector() -> None:
    """Exclude existing objects from the garbage collection before each measurement, which is slow otherwise."""
    gc.collect()
    gc.freeze()


INTEGRITY_TESTS = ("test_integrity.py", "test_global_state.py", "test_faults_adversaries.py")


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Shorten rounds, except in the tests of their length, and where it would be detected."""
    if request.node.path.name not in ("test_timing.py", *INTEGRITY_TESTS):
        monkeypatch.setattr(timing, "MIN_ROUND_S", 0.01)


@pytest.fixture(autouse=True)
def _allow_replacements(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let tests replace measurement functions, except in tests of the detection of replacements."""
    if request.node.path.name not in INTEGRITY_TESTS:
        monkeypatch.setattr(integrity, "_recorded", {})


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
