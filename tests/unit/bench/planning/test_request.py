"""What a part asks of a task: every combination of its axes, and cells that can be told apart."""

from __future__ import annotations

from efficient_attn.bench.case_config import CaseConfig, Sampling
from efficient_attn.bench.planning.request import DEFAULTS, DTYPES, AxisGrid, TaskRequest
from efficient_attn.bench.task import Keys

ASKED = TaskRequest(
    suite="s",
    part="p",
    task="t",
    target="m:T",
    words=("w",),
    keys=Keys(),
    grid=AxisGrid(DEFAULTS),
    sampling=Sampling(seed=3),
)


def test_axes_are_combined_with_devices_and_their_dtypes() -> None:
    grid = AxisGrid(DEFAULTS | {"device": ("cpu", "cuda"), "causal": (False, True)})
    found = [(at["device"], at["dtype"], at["causal"]) for at in grid.combine("causal")]
    assert found[:2] == [("cpu", "float32", False), ("cpu", "float32", True)]
    assert {dtype for device, dtype, _ in found if device == "cuda"} == set(DTYPES["cuda"])
    assert len(found) == len(set(found)) == 6


def test_a_dtype_that_a_suite_names_is_that_of_every_device() -> None:
    grid = AxisGrid(DEFAULTS | {"device": ("cpu", "cuda"), "dtype": ("float64",)})
    assert [(at["device"], at["dtype"]) for at in grid.combine()] == [("cpu", "float64"), ("cuda", "float64")]


def test_a_cell_says_who_asked_and_where_and_how_hard() -> None:
    cell = ASKED.make_group(CaseConfig(seq_len=8, max_len=8), b=[1, [2]], a=None)
    assert (cell.suite, cell.part, cell.task, cell.target, cell.sampling.seed) == ("s", "p", "t", "m:T", 3)
    assert cell.keys == (("a", None), ("b", (1, (2,))))
    assert {cell: 1}[ASKED.make_group(CaseConfig(seq_len=8, max_len=8), a=None, b=(1, (2,)))] == 1  # cells group cases
