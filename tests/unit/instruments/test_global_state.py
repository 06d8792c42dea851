"""Global state that mechanisms must not change: changes are detected, named and restored."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import pytest
import torch
from torch.nn.modules import module

from efficient_attn.instruments import integrity
from efficient_attn.instruments.global_state import GlobalState, GlobalStateChanged, watch_global_state

CHANGES: dict[str, tuple[Callable[[], object], str]] = {
    "threads": (
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        "changed the number of threads from 1 to 2",
    ),
    "dtype": (lambda: torch.set_default_dtype(torch.float64), "changed the default dtype"),
    "gradients": (lambda: torch.set_grad_enabled(False), "turned gradients off"),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True), "turned deterministic algorithms on"),
    "precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        "changed the precision of matrix products from highest to medium",
    ),
    "TF32": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        "changed the precision of matrix products from highest to high",
    ),
    "TF32 by name": (
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        "changed the precision of matrix products from highest to different settings",
    ),
    "TF32 of cuDNN": (
        lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
        "turned cudnn's products in TF32 off",
    ),
    "TF32 of convolutions": (
        lambda: torch._C._set_fp32_precision_setter("cuda", "conv", "ieee"),
        "changed cudnn's products in TF32 from True to different settings",
    ),
    "bfloat16 of oneDNN": (
        lambda: torch._C._set_fp32_precision_setter("mkldnn", "matmul", "bf16"),
        "changed the precision of matrix products",
    ),
    "float32 of all": (lambda: setattr(torch.backends, "fp32_precision", "tf32"), "changed the precision of matrix"),
    "benchmark": (lambda: setattr(torch.backends.cudnn, "benchmark", True), "turned cuDNN's choice of kernels by"),
    "cuDNN": (lambda: setattr(torch.backends.cudnn, "deterministic", True), "turned cuDNN's deterministic kernels on"),
    "float16 sums": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
        "turned cuBLAS's sums in float16 on",
    ),
    "denormals": (lambda: torch.set_flush_denormal(True), "turned the flushing of denormal numbers on"),
    "oneDNN": (lambda: torch._C._set_mkldnn_enabled(False), "turned oneDNN's kernels off"),
    "processors": (lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}), "changed the processors"),
    "profiling": (lambda: sys.setprofile(lambda *event: None), "changed the profiling function"),
    "flash kernel": (
        lambda: torch.backends.cuda.enable_flash_sdp(False),
        "turned the flash kernel of scaled_dot_product_attention off",
    ),
    "math kernel": (lambda: torch.backends.cuda.enable_math_sdp(False), "turned the math kernel of"),
    "efficient kernel": (
        lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
        "turned the mem_efficient kernel",
    ),
    "kernel order": (lambda: torch._C._set_sdp_priority_order([2, 1, 0, 3, 4]), "changed the order of scaled_dot_prod"),
    "fast path": (lambda: torch.backends.mha.set_fastpath_enabled(False), "turned the fast path of torch's encoder"),
    "anomaly": (lambda: torch.autograd.set_detect_anomaly(True), "turned anomaly detection on"),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), "turned autocast on"),
    "device": (
        lambda: torch.set_default_device("cpu"),
        "changed the number of active torch function modes from 0 to 1",
    ),
    "hooks": (
        lambda: module.register_module_forward_pre_hook(lambda *call: None),
        "changed the number of hooks of all modules from 0 to 1",
    ),
    "clock": (lambda: setattr(time, "perf_counter", time.monotonic), "replaced time.perf_counter by its own"),
    "random": (lambda: torch.rand(1), "used torch's global random number generator"),
}


@pytest.fixture(autouse=True, scope="module")
def _recorded_functions() -> None:
    integrity.record_integrity()


def _same(a: GlobalState, b: GlobalState) -> bool:
    return a.values == b.values and torch.equal(a.random, b.random) and integrity.describe_replacement() is None


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_named_and_restored(name: str) -> None:
    act, message = CHANGES[name]
    before = GlobalState.capture()
    with pytest.raises(GlobalStateChanged, match=message), watch_global_state():
        act()
    assert _same(before, GlobalState.capture())


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_restored_after_an_error(name: str) -> None:
    before = GlobalState.capture()

    def fail() -> None:
        CHANGES[name][0]()
        raise KeyError("first")

    with pytest.raises(KeyError), watch_global_state():
        fail()
    assert _same(before, GlobalState.capture())


def test_writes_to_inputs_are_detected() -> None:
    q = torch.zeros(3)
    with pytest.raises(GlobalStateChanged, match="wrote into its inputs"), watch_global_state((q,)):
        q[0] = 1


def test_code_without_side_effects_passes() -> None:
    q = torch.zeros(3)
    with watch_global_state((q,)), torch.no_grad():
        torch.rand(2, generator=torch.Generator().manual_seed(0)) @ (q[:2] + 1)


def test_random_numbers_and_replacements_may_be_left_out() -> None:
    before = GlobalState.capture()
    torch.rand(1)
    assert before.describe_change(random=False) is None
    time.perf_counter = time.monotonic
    assert before.describe_change(random=False, replacements=False) is None
    assert "time.perf_counter" in (before.describe_change(random=False) or "")
    before.restore()
    assert before.describe_change() is None
