"""Findings of the doctor about a GPU, simulated."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from simulated_cuda import simulate_nvml, simulated_cuda

from efficient_attn.bench import gpu_readiness
from efficient_attn.bench.gpu_readiness import check_gpu
from efficient_attn.bench.readiness import Diagnosis, Finding

TOPICS = ["gpu", "driver", "cudnn", "triton", "fla", "flex", "clocks", "processes", "gpu memory", "precision", "sdp"]


def _check(nvml: Any = None, **functions: Any) -> dict[str, Finding]:
    with simulated_cuda(nvml) as patch:
        for name, function in functions.items():
            patch.setattr(torch.cuda, name, function)
        return {finding.topic: finding for finding in check_gpu()}


def test_without_a_gpu_there_is_one_finding() -> None:
    findings = _check(device_count=lambda: 0)
    assert list(findings) == ["gpu"]
    assert findings["gpu"].level == "problem"
    assert "no CUDA device" in findings["gpu"].message


def test_each_topic_is_a_line_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"triton": None, "fla-core": None}
    monkeypatch.setattr(gpu_readiness, "list_package_versions", lambda: versions)
    findings = _check(simulate_nvml(watts=75.0))
    assert list(findings) == TOPICS
    diagnosis = Diagnosis(tuple(findings.values()))
    assert diagnosis.healthy
    assert len(diagnosis.lines()) == len(TOPICS) + len(diagnosis.advice) + 1
    assert "pip install triton" in (findings["triton"].advice or "")
    assert findings["clocks"].message == "1500 MHz, 75 W"
    assert findings["gpu memory"].message == "64 GiB free of 128 GiB"
    versions |= {"triton": "3.6.0", "fla-core": "0.6.0"}
    assert all(_check()[topic].advice is None for topic in ("triton", "fla", "flex"))


@pytest.mark.parametrize(
    ("topic", "nvml", "text"),
    [
        ("clocks", simulate_nvml(reasons=0x20), "throttled: temperature"),
        ("clocks", None, "no sensors"),
        ("processes", simulate_nvml(pids=(7,)), "not known"),
    ],
)
def test_disturbances_and_unknown_sensors_are_named(topic: str, nvml: Any, text: str) -> None:
    finding = _check(nvml)[topic]
    assert text in finding.message
    assert finding.advice
    assert finding.level == ("problem" if "throttled" in text else "note")


def test_another_process_and_little_memory_are_problems() -> None:
    findings = _check(simulate_nvml(pids=(os.getpid(), 99_999_999)), mem_get_info=lambda: (2**29, 2**37))
    assert (findings["processes"].level, findings["processes"].message) == ("problem", "99999999")
    assert findings["gpu memory"].level == "problem"


def test_tf32_and_disabled_kernels_are_named() -> None:
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_flash_sdp(False)
        findings = _check()
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.enable_flash_sdp(True)
    assert findings["precision"].message == "TF32 on in matrix products, on in cuDNN"
    assert "flash" in (findings["sdp"].advice or "")
