"""What all tests share: one thread, the machine for itself where a test looks at the clock, a sample of the longest."""

from __future__ import annotations

import fcntl
import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sampling import SAMPLES, SHARE, choose_sample, commit_number

from efficient_attn.instruments import integrity, timing

os.environ.setdefault(
    "EFFICIENT_ATTN_CALIBRATION", "off"
)  # what is chosen is then the same everywhere, for commands too


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"run sample K of {SAMPLES} of the tests marked `sampled`, or `commit`: the sample of this commit"
    parser.addoption("--sample", metavar="K", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Replace ``--sample commit`` by its number, before workers are started that could see another commit."""
    given = config.getoption("--sample")
    if given is None:
        return
    number = commit_number(config.rootpath) if given == "commit" else given
    if not str(number).isdigit():
        raise pytest.UsageError(f"--sample takes `commit` or a number from 0 to {SAMPLES - 1}, not {given!r}")
    config.option.sample = int(number) % SAMPLES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    number = config.getoption("--sample")
    if number is not None:  # at the end, as `-q` hides the header
        terminalreporter.write_line(f"sample {number} of {SAMPLES}; to repeat it: SAMPLE={number} tox")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the cases of each test function that are marked ``sampled``, keep those of the sample that is asked for."""
    number = config.getoption("--sample")
    groups = defaultdict(list)
    for item in items if number is not None else ():
        if mark := item.get_closest_marker("sampled"):
            share, *rest = mark.args or (SHARE,)
            groups[item.nodeid.partition("[")[0], *rest, share].append(item.nodeid)
    left = {name for names in groups.values() for name in names} - choose_sample(groups, number or 0)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
    items[:] = [item for item in items if item.nodeid not in left]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Of several workers, one runs a test marked ``alone`` while the others wait; the other tests share the machine."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    folder = Path(item.config._tmp_path_factory.getbasetemp()).parent  # pyright: ignore[reportAttributeAccessIssue]
    with (folder / "door").open("w") as door, (folder / "machine").open("w") as machine:
        fcntl.flock(door, fcntl.LOCK_EX)  # who waits to be alone keeps the door shut, so that no other slips in
        fcntl.flock(machine, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """A test that draws without a generator of its own draws the same numbers whenever and wherever it runs."""
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect() -> None:
    """Measuring collects garbage before it begins: not all of torch, pandas and the tests so far each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Rounds that last only as long as their passes, except where their length is what is tested."""
    if request.node.path.name != "test_timing.py":
        monkeypatch.setattr(timing, "MIN_ROUND_S", 0.01)


SEALED = ("test_integrity.py", "test_global_state.py", "test_faults_adversaries.py")


@pytest.fixture(autouse=True)
def _open_seal(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests may replace what measures, except where it is tested that nobody may."""
    if request.node.path.name not in SEALED:
        monkeypatch.setattr(integrity, "_recorded", {})


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
