"""Task requests: combinations of axes, and groups that are hashable and distinct."""

from __future__ import annotations

from efficient_attn.bench.case_config import CaseConfig, Sampling
from efficient_attn.bench.planning.request import DEFAULTS, DTYPES, AxisGrid, TaskRequest
from efficient_attn.bench.task import Keys

REQUEST = TaskRequest(
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
    points = [(at["device"], at["dtype"], at["causal"]) for at in grid.combine("causal")]
    assert points[:2] == [("cpu", "float32", False), ("cpu", "float32", True)]
    assert {dtype for device, dtype, _ in points if device == "cuda"} == set(DTYPES["cuda"])
    assert len(points) == len(set(points)) == 6


def test_a_given_dtype_applies_to_every_device() -> None:
    grid = AxisGrid(DEFAULTS | {"device": ("cpu", "cuda"), "dtype": ("float64",)})
    assert [(at["device"], at["dtype"]) for at in grid.combine()] == [("cpu", "float64"), ("cuda", "float64")]


def test_a_group_has_the_origin_sampling_and_keys_of_its_request() -> None:
    group = REQUEST.make_group(CaseConfig(seq_len=8, max_len=8), b=[1, [2]], a=None)
    assert (group.suite, group.part, group.task, group.target, group.sampling.seed) == ("s", "p", "t", "m:T", 3)
    assert group.keys == (("a", None), ("b", (1, (2,))))
    assert {group: 1}[REQUEST.make_group(CaseConfig(seq_len=8, max_len=8), a=None, b=(1, (2,)))] == 1
