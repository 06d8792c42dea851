"""Processes that the tests of this folder share."""

from collections.abc import Iterator

import pytest
from rank_processes import RankProcesses


@pytest.fixture(scope="package")
def rank_processes() -> Iterator[RankProcesses]:
    processes = RankProcesses()
    yield processes
    processes.close()
