"""Decode steps in Triton: when they are chosen, and mechanisms that decode with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from intercepted_kernels import pretended_gpu
from pretended_gpu import to_gpu
from torch import Tensor
from triton_runs import DEVICE, DTYPES, INTERPRETED, ROUNDING, draw, runs_kernels

import efficient_attn as ea
from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.native import triton_step
from efficient_attn.testing import Subject


def test_triton_is_chosen_for_states_and_calls_that_it_supports() -> None:
    half = torch.bfloat16

    def choose(shape: tuple[int, ...] = (2, 8, 4), dtype: torch.dtype = half, group: int = 1, **others: Any) -> bool:
        state = to_gpu(others.get("state", torch.zeros(shape, dtype=others.get("sums", torch.float32))))
        heads, width, _ = shape
        q, k = (to_gpu(torch.zeros(size, dtype=dtype)) for size in ((heads, group, 1, width), (heads, 1, width)))
        return triton_step.is_chosen(state, 256, q, k, None)

    with pretended_gpu():
        assert all(choose(dtype=dtype) for dtype in DTYPES)
        assert choose((1, 256, 256), group=64)
        assert not choose(dtype=torch.float64)
        assert not choose(sums=torch.float64)
        assert not choose((1, 257, 4))
        assert not choose((1, 4, 257))
        assert not choose(group=65)
        assert not choose((0, 4, 4))
        assert not choose(state=torch.zeros(2, 4, 8).mT)
        for where, name, value in (
            (torch.cuda, "is_current_stream_capturing", True),
            (triton_step, "why_no_triton", "no compiler"),
            (triton_step, "have_numbers", False),  # under torch.compile and transformations
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(where, name, lambda *arguments, value=value: value)
                assert not choose()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            patch.setattr(triton_step, "why_no_triton", lambda device: pytest.fail("a kernel is compiled in a capture"))
            assert not choose()
    assert not triton_step.is_chosen(torch.zeros(1, 2, 2), 256, torch.zeros(1, 1, 1, 2))  # on the processor


def test_a_gpu_without_triton_has_a_reason_and_is_not_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps then run in torch."""
    calls: list[int] = []

    def fail(*tensors: Any) -> Tensor:
        calls.append(1)
        raise RuntimeError("Failed to find\n a C compiler")

    monkeypatch.setattr(triton_step, "step_state", fail)
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.zeros(size))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5) if device.index == 1 else (9, 0))
    triton_step.why_no_triton.cache_clear()
    monkeypatch.setenv(triton_step.VARIABLE, "off")
    assert triton_step.why_no_triton(torch.device("cuda", 3)) == f"{triton_step.VARIABLE} is off"
    monkeypatch.delenv(triton_step.VARIABLE)
    monkeypatch.setattr(triton_step.importlib.util, "find_spec", lambda name: None)
    assert triton_step.why_no_triton(torch.device("cuda", 2)) == "triton is not installed"
    monkeypatch.setattr(triton_step.importlib.util, "find_spec", lambda name: "spec")
    assert "8.0 or newer" in str(triton_step.why_no_triton(torch.device("cuda", 1)))
    for _ in range(2):
        reason = triton_step.why_no_triton(torch.device("cuda", 0))
        assert reason == "Triton cannot run its kernels: RuntimeError: Failed to find a C compiler"
    assert len(calls) == 1
    triton_step.why_no_triton.cache_clear()


# -- mechanisms ------------------------------------------------------------------------------------------------------

LENGTH, PROMPT = 9, 5
MECHANISMS = ["linear", "relu_linear", "performer", "random_feature:gated=true", "cosformer", "retention", "lightning"]
MECHANISMS += ["retention:normalised=true", "mamba2", "gla", "delta_net", "gated_delta_net", "kda"]


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> dict[Any, str]:
    """The recorded choices, where Triton is chosen on the processor too."""
    monkeypatch.setattr(autotuner, "CHOICES", {})
    if INTERPRETED:
        monkeypatch.setattr(triton_step, "is_chosen", lambda state, *others: state.dtype == torch.float32)
    return autotuner.CHOICES


@runs_kernels
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms_decode_as_their_references_define(choices: dict[Any, str], name: str, padded: bool) -> None:
    """Groups of two heads of odd widths, and rows that begin at different positions."""
    subject = Subject(name, device=DEVICE)
    if padded and subject.attn.why_no_starts():
        pytest.skip("rows with other starts have states of their own")
    starts = torch.tensor([0, 3]) if padded else None
    key_mask = None if starts is None else torch.arange(LENGTH) >= starts[:, None]
    mask = ea.Mask(causal=True, key_mask=None if key_mask is None else key_mask.to(DEVICE))
    for dtype in DTYPES:
        sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 20, "value_dim": 11}
        attn, call = subject.prepare(LENGTH, mask=mask, dtype=dtype, **sizes)
        truth = subject.truth(subject.shape(LENGTH, **sizes), dtype)
        state = attn.init_state(2, LENGTH, dtype, DEVICE, starts=starts)
        rows, exact = [], call.change(torch.Tensor.double).run(truth)[:, :, PROMPT:]
        with torch.no_grad():
            state = call.both(slice(0, PROMPT)).absorb(attn, state)
            choices.clear()
            for i in range(PROMPT, LENGTH):
                out, state = call.both(slice(i, i + 1)).step(attn, state)
                rows.append(out)
        assert autotuner.list_choices().split()[-1] == "step=triton"
        error = (torch.cat(rows, 2) - exact).norm() / exact.norm()
        assert error < 2 * max(ROUNDING[dtype], 2e-5)


@runs_kernels
def test_states_are_values_as_in_torch(choices: dict[Any, str]) -> None:
    """A copy of a state is another branch, a step changes the state that it gets, and torch knows of it."""
    attn = ea.create("linear", dims=ea.Dims(heads=2, head_dim=4))
    q, k, v = (x.view(1, 2, 2, 4) for x in draw(0, *[(16,)] * 3, dtype=torch.float32))
    k.requires_grad_()
    _, state = attn.step(q[:, :, :1], k[:, :, :1], v[:, :, :1], attn.init_state(1, 4, device=DEVICE))
    loss = (state.sums[0].kv ** 2).sum()  # saves the state
    with torch.no_grad():
        branch = state.sums[0]._replace(kv=state.sums[0].kv.clone(), z=state.sums[0].z.clone())
        branched = type(state)((branch,), state.length)
        first, after = attn.step(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], state)
        second, _ = attn.step(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], branched)
    assert torch.equal(first, second)
    assert after.sums[0].kv is state.sums[0].kv
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
