"""Packed and padded calls through torch's varlen_attn: results, sequences and launches, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from intercepted_kernels import pretended_gpu
from pretended_gpu import count, get_data, to_gpu
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import efficient_attn as ea
from efficient_attn.contract.left_padding import StatesByStart
from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.softmax import sdpa_kernels

HALF = (torch.bfloat16, torch.float16)


def draw(
    batch: int, n: int, m: int, heads: tuple[int, int], width: int, dtype: torch.dtype, *, positions_first: bool = False
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (n, heads[0], width), (m, heads[1], width), (m, heads[1], width - 8)
    tensors = [torch.randn(batch, *size, generator=generator).to(dtype).transpose(1, 2) for size in sizes]
    return tensors if positions_first else [x.contiguous() for x in tensors]


def compare(attn: ea.Attention, tensors: list[Tensor], mask: ea.Mask, mask_there: ea.Mask) -> None:
    """Output and gradients on the GPU, with numbers in padding that spread if they are read, and the reference's."""
    unseen: list[Tensor | None] = [mask.query_valid(tensors[0].shape[2]), *[mask.key_valid(tensors[1].shape[2])] * 2]
    poisoned = [
        x if valid is None else x.masked_fill(~valid[:, None, :, None], float("nan"))
        for x, valid in zip(tensors, unseen, strict=True)
    ]
    leaves, here = [to_gpu(x).requires_grad_() for x in poisoned], [x.clone().requires_grad_() for x in tensors]
    out, want = attn(*leaves, mask_there), ea.create("full", backend="dense")(*here, mask)
    grads = torch.autograd.grad(out, leaves, to_gpu(torch.ones_like(want)))
    wanted = torch.autograd.grad(want, here, torch.ones_like(want), materialize_grads=True)
    for x, y in zip((out, *grads), (want, *wanted), strict=True):
        assert x.shape == y.shape
        assert torch.linalg.vector_norm(get_data(x) - y) <= 0.02 * torch.linalg.vector_norm(y)


@pytest.mark.parametrize(
    ("backend", "heads", "positions_first"),
    [(None, (2, 2), False), ("varlen", (4, 2), True), (None, (4, 1), False), ("varlen", (2, 2), True)],
)
@pytest.mark.parametrize(
    ("n", "m", "width", "mask"),
    [
        (37, 37, 64, {}),
        (37, 37, 128, {"causal": True}),
        (5, 37, 80, {"causal": True}),
        (37, 9, 64, {"causal": True}),
        (1, 37, 64, {"causal": True}),
        (12, 37, 64, {"causal": True, "query_start": 3}),
        (12, 37, 64, {"causal": True, "query_start": 30}),
        (12, 37, 64, {"causal": True, "query_start": -4}),
        (12, 37, 64, {"causal": True, "query_start": -12}),
        (37, 37, 64, {"causal": True, "query_lengths": "same"}),
        (37, 37, 64, {"query_lengths": "same"}),
        (37, 37, 64, {"causal": True, "query_lengths": "other"}),
    ],
)
def test_padding_equals_the_reference_and_is_never_read(
    backend: str | None, heads: tuple[int, int], positions_first: bool, n: int, m: int, width: int, mask: dict[str, Any]
) -> None:
    tensors = draw(4, n, m, heads, width, HALF[m % 2], positions_first=positions_first)
    lengths = torch.tensor([0, 1, m - 2, m])
    there, mask = to_gpu(lengths), dict(mask)
    kind = mask.pop("query_lengths", None)
    fields, fields_there = {"key_lengths": lengths, **mask}, {"key_lengths": there, **mask}
    if kind:
        fields["query_lengths"] = lengths if kind == "same" else torch.tensor([3, 0, n, 7])
        fields_there["query_lengths"] = there if kind == "same" else to_gpu(fields["query_lengths"])
    with pretended_gpu() as gpu:
        compare(ea.create("full", backend=backend), tensors, ea.Mask(**fields), ea.Mask(**fields_there))
    assert set(gpu.work.requested) == {"varlen"}
    assert len(gpu.work.requested) == (2 if mask.get("causal") and n > 1 and kind != "same" else 1)


@pytest.mark.parametrize("start", [None, -50, -4, 0, 9, 30, 36, 60])
@pytest.mark.parametrize("n", [1, 12, 37])
def test_the_named_backend_takes_calls_without_padding(n: int, start: int | None) -> None:
    mask = ea.Mask(causal=True, query_start=start)
    with pretended_gpu() as gpu:
        compare(ea.create("full", backend="varlen"), draw(2, n, 37, (4, 2), 64, HALF[0]), mask, mask)
    assert set(gpu.work.requested) == {"varlen"}


@pytest.mark.parametrize("backend", [None, "varlen"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(2, 2), (4, 1)])
@pytest.mark.parametrize("ends", [(0, 5, 5, 36, 37), (0, 37), (0, 0, 1, 2, 3)])
def test_packed_sequences_are_one_call(
    backend: str | None, causal: bool, heads: tuple[int, int], ends: tuple[int, ...]
) -> None:
    n, attn = ends[-1], ea.create("gqa", backend=backend)
    tensors = draw(1, n, n, heads, 80, HALF[1])
    cu_seqlens = torch.tensor(ends)
    mask = ea.Mask(causal=causal, cu_seqlens=cu_seqlens)
    with pretended_gpu() as gpu:
        compare(attn, tensors, mask, mask)
        compare(attn, tensors, mask, ea.Mask(causal=causal, cu_seqlens=to_gpu(cu_seqlens)))
        assert gpu.work.requested == ["varlen"] * 2
        q, k, _ = (to_gpu(x) for x in draw(1, n, n, heads, 64, HALF[0]))
        work, _ = count(gpu, lambda: attn(q, k, k, mask))
        assert work.launches.total() == 2  # the kernel, and the numbers of dropout
        assert not work.waits.total() + work.copies.total() + work.mixed.total()
        assert "attention=varlen" in autotuner.list_choices().split()  # others are those of the references


@pytest.mark.parametrize(
    ("name", "causal", "query_lengths", "most"),
    [("full", False, False, 10), ("full", True, False, 13), ("gqa", True, True, 13), ("mqa", True, False, 17)],
)
def test_padded_calls_launch_few_kernels(name: str, causal: bool, query_lengths: bool, most: int) -> None:
    """Five check lengths, three make the sequences; of grouped heads three copy heads behind positions."""
    attn, lengths = ea.create(name), to_gpu(torch.tensor([30, 37]))
    tensors = draw(2, 37, 37, (4, 1 if name == "mqa" else 4 if name == "full" else 2), 64, HALF[0])
    with pretended_gpu() as gpu:
        mask = ea.Mask(causal=causal, key_lengths=lengths, query_lengths=lengths if query_lengths else None)
        q, k, _ = (to_gpu(x) for x in tensors)
        attn(q, k, k, mask)
        work, _ = count(gpu, lambda: attn(q, k, k, mask))
    assert work.launches.total() <= most + 5 * query_lengths
    assert not work.waits.total() + work.copies.total() + work.mixed.total()


def test_other_calls_with_padding_are_left_to_masks() -> None:
    """Padding on the left, dropout, odd widths, float32, and learned transformations of keys, which blank padding."""
    lengths = to_gpu(torch.tensor([30, 37]))
    with pretended_gpu() as gpu:
        tensors = [to_gpu(x) for x in draw(2, 37, 37, (2, 2), 64, HALF[0])]
        ea.create("full")(*tensors, ea.Mask(key_mask=to_gpu(torch.ones(2, 37, dtype=torch.bool))))
        dropping = ea.create("full")
        dropping.dropout = 0.5
        dropping(*tensors, ea.Mask(key_lengths=lengths))
        ea.create("full")(*(x[..., :20] for x in tensors), ea.Mask(key_lengths=lengths))
        ea.create("full")(*(x.float() for x in tensors), ea.Mask(key_lengths=lengths))
        assert gpu.work.requested == ["flash,cudnn,efficient,math"] * 4
        with sdpa_kernel(SDPBackend.MATH):
            ea.create("full")(*tensors, ea.Mask(key_lengths=lengths))
        assert gpu.work.requested[4:] == ["math"]


def test_devices_without_flash_attention_are_left_to_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa_kernels, "_ANSWERS", {})
    lengths = to_gpu(torch.tensor([30, 37]))
    with pretended_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cuda, "can_use_flash_attention", lambda params, debug=False: False)
        tensors = [to_gpu(x) for x in draw(2, 37, 37, (2, 2), 64, HALF[0])]
        ea.create("full")(*tensors, ea.Mask(key_lengths=lengths))
        assert gpu.work.requested == ["flash,cudnn,efficient,math"]
        with pytest.raises(ea.UnsupportedError, match="backend 'varlen' cannot compute this call: torch: it gives no"):
            ea.create("full", backend="varlen")(*tensors, ea.Mask(key_lengths=lengths))


def test_a_decode_state_with_padding_on_the_left_has_a_state_for_each_start() -> None:
    state = ea.create("full", backend="varlen").init_state(2, 9, HALF[0], starts=torch.tensor([0, 3]))
    assert type(state) is StatesByStart
