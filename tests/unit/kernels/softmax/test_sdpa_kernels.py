"""Kernels of torch's attention by name and by timing: which one is requested, what is refused, what rows show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from intercepted_kernels import pretended_gpu
from pretended_gpu import PretendedGpu, count, get_data, to_gpu
from torch import Tensor, nn
from torch.nn import attention

import efficient_attn as ea
from efficient_attn.contract.shapes import Shape
from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.softmax import fused, sdpa_kernels

NAMED = ("flash", "cudnn", "efficient", "math")
HALF = torch.bfloat16


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    """A pretended GPU on which nothing was timed."""
    monkeypatch.delenv(autotuner.VARIABLE, raising=False)
    autotuner._TABLES.pop((sdpa_kernels.ATTENTION.name, torch.get_num_threads()), None)
    autotuner.clear_choices()
    with pretended_gpu() as gpu:
        yield gpu
        monkeypatch.undo()  # the test's patches before those of the pretended GPU, which they replaced
    autotuner._TABLES.pop((sdpa_kernels.ATTENTION.name, torch.get_num_threads()), None)
    autotuner.clear_choices()


def draw(
    n: int = 40, m: int | None = None, *, heads: tuple[int, int] = (2, 2), width: int = 64, dtype: torch.dtype = HALF
) -> list[Tensor]:
    generator, m = torch.Generator().manual_seed(0), n if m is None else m
    sizes = (2, heads[0], n, width), (2, heads[1], m, width), (2, heads[1], m, width)
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def check(attn: ea.Attention, tensors: list[Tensor], mask: ea.Mask, here: ea.Mask | None = None) -> None:
    """Compare output and gradients on the GPU with the reference here."""
    leaves, leaves_here = [to_gpu(x).requires_grad_() for x in tensors], [x.clone().requires_grad_() for x in tensors]
    out, want = attn(*leaves, mask), ea.create("full", backend="dense")(*leaves_here, here or mask)
    grads = torch.autograd.grad(out, leaves, to_gpu(torch.ones_like(want)))
    wanted = torch.autograd.grad(want, leaves_here, torch.ones_like(want))
    assert [x.shape for x in grads] == [x.shape for x in tensors]  # those of key-value heads
    for x, y in zip((out, *grads), (want, *wanted), strict=True):
        assert torch.linalg.vector_norm(get_data(x) - y) <= 0.02 * torch.linalg.vector_norm(y)


@pytest.mark.parametrize("kernel", NAMED)
@pytest.mark.parametrize(
    ("dtype", "width", "heads", "sizes"),
    [
        (torch.bfloat16, 64, (2, 2), (40, 40)),
        (torch.float16, 128, (4, 2), (33, 33)),
        (torch.bfloat16, 80, (4, 1), (1, 37)),
        (torch.float16, 64, (4, 2), (7, 37)),
        (torch.bfloat16, 64, (2, 2), (37, 7)),
    ],
)
def test_only_the_named_kernel_is_requested(
    gpu: PretendedGpu, kernel: str, dtype: torch.dtype, width: int, heads: tuple[int, int], sizes: tuple[int, int]
) -> None:
    tensors, attn = draw(*sizes, heads=heads, width=width, dtype=dtype), ea.create("full", backend=kernel)
    for causal in (False, True):
        check(attn, tensors, ea.Mask(causal=causal))
    assert set(gpu.work.requested) == {kernel}
    assert not gpu.work.timed


@pytest.mark.parametrize("kernel", ["cudnn", "efficient", "math"])
def test_named_kernels_take_padding_as_a_mask(gpu: PretendedGpu, kernel: str) -> None:
    lengths = torch.tensor([0, 29])
    here, there = (ea.Mask(causal=True, key_lengths=x) for x in (lengths, to_gpu(lengths)))
    check(ea.create("full", backend=kernel), draw(33, heads=(4, 2)), there, here)
    assert set(gpu.work.requested) == {kernel}


def test_queries_at_any_position_need_no_mask_for_flash_attention(gpu: PretendedGpu) -> None:
    tensors = draw(12, 37, heads=(4, 2))
    for start in (-20, -3, 0, 9, 25, 30, 36, 50):
        for attn in (ea.create("full"), ea.create("full:backend=flash")):
            check(attn, tensors, ea.Mask(causal=True, query_start=start))
    assert set(gpu.work.requested) == {"flash"}


@pytest.mark.parametrize(
    ("backend", "options", "mask", "reason"),
    [
        ("flash", {"dtype": torch.float32}, {}, "takes torch.bfloat16 and torch.float16, not torch.float32"),
        ("cudnn", {"dtype": torch.float64}, {}, "not torch.float64"),
        ("efficient", {"dtype": torch.float64}, {}, "not torch.float64"),
        ("flash", {"width": 264}, {}, "heads of at most 256, not 264"),
        ("cudnn", {"width": 20}, {}, "heads of a multiple of 8, not 20"),
        ("efficient", {"width": 20}, {}, "heads of a multiple of 8, not 20"),
        ("flash", {}, {"key_lengths": torch.tensor([3, 4])}, "does not support padding"),
        ("varlen", {"width": 20}, {}, "a multiple of 8 up to 256, not 20"),
        ("varlen", {"dtype": torch.float32}, {}, "not torch.float32"),
        ("varlen", {}, {"key_mask": torch.ones(2, 40, dtype=torch.bool)}, "not the explicit mask key_mask"),
    ],
)
def test_calls_are_refused_with_the_reason(
    gpu: PretendedGpu, backend: str, options: dict[str, Any], mask: dict[str, Tensor], reason: str
) -> None:
    attn, tensors = ea.create("full", backend=backend), [to_gpu(x) for x in draw(**options)]
    with pytest.raises(ea.UnsupportedError, match=reason):
        attn(*tensors, ea.Mask(**{name: to_gpu(x) for name, x in mask.items()}))
    assert not gpu.work.requested


def test_varlen_refuses_dropout_and_flash_takes_it(gpu: PretendedGpu) -> None:
    tensors = [to_gpu(x) for x in draw()]
    for name in ("full", "dot"):
        with pytest.raises(ea.UnsupportedError, match="does not drop attention weights"):
            ea.create(name, backend="varlen").dropout = 0.5
        attn = ea.create(name, backend="flash")
        attn.dropout = 0.5
        attn(*tensors)
    default = ea.create("full")
    default.dropout = 0.5
    default(*tensors)
    assert (gpu.work.requested, gpu.work.timed) == (["flash"] * 3, [])


def test_torch_is_asked_and_gives_its_reason(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(params: Any, debug: bool = False) -> bool:
        if debug:
            torch.warnings.warn("not on this chip (Triggered internally at sdp_utils.cpp:1.)", stacklevel=1)
        return False

    monkeypatch.setattr(sdpa_kernels, "_ANSWERS", {})
    monkeypatch.setattr(torch.backends.cuda, "can_use_cudnn_attention", refuse)
    tensors = [to_gpu(x) for x in draw(43)]
    with pytest.raises(ea.UnsupportedError, match=r"backend 'cudnn' cannot .*: torch: not on this chip$"):
        ea.create("full", backend="cudnn")(*tensors)
    ea.create("full")(*tensors)  # the other candidate, without timing
    assert (gpu.work.requested, gpu.work.timed) == (["flash"], [])
    with pytest.raises(ea.UnsupportedError, match="runs on cuda only, not on cpu"):
        ea.create("full", backend="cudnn")(*draw())


@pytest.mark.parametrize(("seconds", "winner"), [(1.0, "cudnn"), (1.9, "flash"), (3.0, "flash")])
def test_the_faster_kernel_is_selected_once_a_geometry(gpu: PretendedGpu, seconds: float, winner: str) -> None:
    gpu.seconds["cudnn"] = seconds  # flash attention takes 2, and wins ties
    attn, tensors = ea.create("full"), [to_gpu(x) for x in draw(40)]
    attn(*tensors)
    assert gpu.work.timed == ["flash", "cudnn"]
    autotuner.clear_choices()  # as before the calls of which a row is made
    work, _ = count(gpu, lambda: [attn(*tensors), attn(*(to_gpu(x) for x in draw(63)))])
    assert (work.requested, work.timed, work.launches.total()) == ([winner] * 2, [], 2)
    assert autotuner.list_choices() == f"attention={winner}"
    call = {"causal": False, "dtype": HALF, "device": torch.device("cuda"), "gradient": False}
    assert attn.what_runs(Shape(2, 2, 2, 40, 40, 64, 64), **call) == (winner, None)
    assert attn.what_runs(Shape(2, 2, 2, 400, 400, 64, 64), **call) == ("sdpa", None)  # has not run
    work, _ = count(gpu, lambda: [attn(*tensors, ea.Mask(causal=True)), attn(*(to_gpu(x) for x in draw(65)))])
    assert len(work.timed) == 4
    leaves = [x.requires_grad_() for x in tensors]
    assert len(count(gpu, lambda: attn(*leaves))[0].timed) == 2  # gradients are another geometry


def test_selections_are_made_by_rule(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped heads, decode steps, settings of torch and a CUDA graph."""
    attn = ea.create("full")
    attn(*(to_gpu(x) for x in draw(40, heads=(4, 2))))
    attn(*(to_gpu(x) for x in draw(1, 40)))
    assert (gpu.work.requested, gpu.work.timed) == (["flash"] * 2, [])
    tensors = [to_gpu(x) for x in draw(40)]
    with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
        assert count(gpu, lambda: attn(*tensors))[0].requested == ["cudnn"]
    autotuner.clear_choices()
    with attention.sdpa_kernel(attention.SDPBackend.MATH):  # left to torch, which has one
        assert count(gpu, lambda: attn(*tensors))[0].requested == ["math"]
    assert autotuner.list_choices() == "attention=torch"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    autotuner.clear_choices()
    work, _ = count(gpu, lambda: attn(*tensors))
    assert (work.requested, work.timed) == (["flash"], [])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    work, _ = count(gpu, lambda: attn(*tensors))
    assert (work.requested, work.timed) == (["cudnn"], ["flash", "cudnn"])
    masked = ea.Mask(key_mask=to_gpu(torch.ones(2, 40, dtype=torch.bool)))
    assert count(gpu, lambda: attn(*tensors, masked))[0].requested == ["flash,cudnn,efficient,math"]


def test_calibration_can_be_switched_off(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(autotuner.VARIABLE, "off")
    ea.create("full")(*(to_gpu(x) for x in draw(40)))
    assert (gpu.work.requested, gpu.work.timed) == (["flash"], [])


def test_flash_attention_has_the_name_of_its_implementation(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ea.UnsupportedError, match=r'runs flash in its place; call .*activate_flash_.*"FA3"\) first'):
        ea.create("full", backend="flash3")
    named, tensors = ea.create("full", backend="flash"), [to_gpu(x) for x in draw(40)]
    gpu.seconds["flash3"] = 0.5
    monkeypatch.setattr(attention, "current_flash_attention_impl", lambda: "FA3")
    attn = ea.create("full", backend="flash3")
    attn(*tensors)
    with pytest.raises(ea.UnsupportedError, match=r"runs flash3 in its place; call .*restore_flash_attention_impl\(\)"):
        named(*tensors)
    ea.create("full")(*tensors)
    assert gpu.work.timed == ["flash3", "cudnn"]
    assert autotuner.list_choices() == "attention=flash3"
    monkeypatch.setattr(attention, "current_flash_attention_impl", lambda: "of others")
    autotuner.clear_choices()
    assert count(gpu, lambda: ea.create("full")(*tensors))[0].requested == ["cudnn"]


@pytest.mark.parametrize("groups", [False, True])
def test_torch_runs_the_requested_kernel(groups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: torch's own kernel by name, eager and compiled."""
    q, k, v = draw(9, heads=(4, 2 if groups else 4), width=8, dtype=torch.float32)
    options: dict[str, Any] = {"causal": True, "scale": 0.3, "dropout": 0.0, "groups": groups}
    want = fused.call_torch(q, k, v, None, **options)

    class Call(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return fused.call_torch(q, k, v, None, **options, kernel="math")

    compiled = torch.compile(Call(), backend="eager", fullgraph=True)
    torch.testing.assert_close(Call()(q, k, v), want)
    torch.testing.assert_close(compiled(q, k, v), want)
    with torch.profiler.profile() as profile:
        Call()(q, k, v)
    assert "aten::_scaled_dot_product_attention_math" in {event.key for event in profile.key_averages()}
    with pytest.raises(RuntimeError, match="No viable backend"):
        fused.call_torch(q, k, v, None, **options, kernel="efficient")
    assert torch.backends.cuda.flash_sdp_enabled()
