"""Packed sequences: calls by length, views and copies, and results equal to separate sequences."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.mechanism import MASK_FIELDS, Attention
from efficient_attn.contract.traits import Input, Traits


class Recording(Attention):
    """Stores each call; its rows are the queries' first entries plus the position in the call."""

    claims = Traits()
    backends = ("fast", "dense")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor, Tensor, Mask, dict[str, Tensor]]] = []

    @property
    def traits(self) -> Traits:
        return self.claims

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        self.calls.append((q, k, v, mask, inputs))
        return (q[..., :1] + torch.arange(q.shape[2])[:, None]).expand(*q.shape[:3], v.shape[3]).clone()

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(sequences, their length) of each call so far."""
        return [(q.shape[0], q.shape[2]) for q, *_ in self.calls]


def packed(*lengths: int, causal: bool = False, dtype: torch.dtype = torch.int32) -> Mask:
    return Mask(causal, cu_seqlens=torch.tensor([0, *accumulate(lengths)], dtype=dtype))


def tensors(n: int, *, heads: int = 4, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's entries are its position."""
    q, k, v = (
        torch.arange(n).double()[:, None].expand(1, h, n, e).clone()
        for h, e in ((heads, 5), (kv_heads, 5), (kv_heads, 3))
    )
    return q, k, v


def shares_memory(part: Tensor, whole: Tensor) -> bool:
    return part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("lengths", "calls"),
    [
        ((3, 1, 3, 2, 1, 3), [(3, 3), (2, 1), (1, 2)]),
        ((4, 4, 4), [(3, 4)]),
        ((7,), [(1, 7)]),
        ((2, 5, 3), [(1, 2), (1, 5), (1, 3)]),
        ((0, 2, 0, 2), [(2, 2)]),
        ((*range(1, 11),), [(1, i) for i in range(1, 11)]),
    ],
)
def test_sequences_of_equal_length_share_a_call(lengths: tuple[int, ...], calls: list[tuple[int, int]]) -> None:
    attn, n = Recording(), sum(lengths)
    q, k, v = tensors(n)
    out = attn(q, k, v, packed(*lengths))
    assert attn.sizes == calls
    within = [i for length in lengths for i in range(length)]
    assert out[0, 0, :, 0].tolist() == [i + p for i, p in zip(range(n), within, strict=True)]
    assert tuple(out.shape) == (1, 4, n, 3)


def test_each_call_gets_whole_sequences_of_all_tensors() -> None:
    attn = Recording()
    attn(*tensors(8), packed(3, 2, 3, causal=True))
    for (q, k, v, mask, _), starts, length in zip(attn.calls, ((0, 5), (3,)), (3, 2), strict=True):
        expected = [[float(s + i) for i in range(length)] for s in starts]
        for x, heads in ((q, 4), (k, 2), (v, 2)):
            assert x.shape[1] == heads
            assert (x[:, 0, :, 0].tolist(), x[:, -1, :, -1].tolist()) == (expected, expected)
        assert mask.used == {"causal"}


@pytest.mark.parametrize(
    ("lengths", "views"),
    [
        ((6,), True),
        ((2, 2, 2), True),
        ((1, 3, 2), True),
        ((2, 3, 0, 1), True),
        ((0, 3, 0, 3), True),
        ((1, 2, 1, 2), False),
    ],
)
def test_sequences_at_even_strides_are_not_copied(lengths: tuple[int, ...], views: bool) -> None:
    attn = Recording()
    inputs = tensors(6)
    attn(*inputs, packed(*lengths))
    for q, k, v, *_ in attn.calls:
        assert [shares_memory(x, whole) for x, whole in zip((q, k, v), inputs, strict=True)] == [views] * 3


def test_further_inputs_are_split_with_the_sequences() -> None:
    attn = Recording()
    attn.claims = Traits(inputs={"gate": Input("key"), "step": Input("query", per_head=False, tail=(2, 3))})
    position = torch.arange(5.0)
    gate, step = position.expand(1, 2, 5), position[:, None, None].expand(1, 1, 5, 2, 3)
    attn(*tensors(5), packed(2, 1, 2), gate=gate, step=step)
    (*_, pairs), (*_, single) = attn.calls
    assert (tuple(pairs["gate"].shape), tuple(pairs["step"].shape)) == ((2, 2, 2), (2, 1, 2, 2, 3))
    assert pairs["gate"][:, 1].tolist() == pairs["step"][:, 0, :, 1, 2].tolist() == [[0, 1], [3, 4]]
    assert single["gate"][0, 0].tolist() == single["step"][0, 0, :, 0, 0].tolist() == [2]
    for bad in (gate[:, :, :4], gate.expand(2, 2, 5), position):
        with pytest.raises(ea.UsageError, match=r"packed sequences: gate must be \[1, heads, 5, ..\], got \["):
            attn(*tensors(5), packed(2, 1, 2), gate=bad, step=step)


@pytest.mark.parametrize("lengths", [(2, 3, 2), (2, 2), (4,)])
def test_identical_tensors_stay_identical_in_each_call(lengths: tuple[int, ...]) -> None:
    attn = Recording()
    x = tensors(sum(lengths), kv_heads=4)[0]
    attn(x, x, x, packed(*lengths))
    assert all(q is k is v for q, k, v, *_ in attn.calls)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0)])
def test_empty_sequences_give_empty_outputs_with_a_backward_pass(lengths: tuple[int, ...]) -> None:
    q, k, v = (x.requires_grad_() for x in tensors(0))
    out = Recording()(q, k, v, packed(*lengths))
    assert tuple(out.shape) == (1, 4, 0, 3)
    out.sum().backward()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=7), st.booleans(), st.sampled_from([torch.int64, torch.int32, torch.uint8]))
def test_exact_attention_equals_sdpa_with_a_block_diagonal_mask(
    lengths: list[int], causal: bool, dtype: torch.dtype
) -> None:
    n, mask = sum(lengths), packed(*lengths, causal=causal, dtype=dtype)
    g = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(1, 2, n, 4, generator=g, dtype=torch.float64).requires_grad_() for _ in range(3))
    weight = torch.randn(1, 2, n, 4, generator=g, dtype=torch.float64)
    got = ea.attention(q, k, v, is_causal=causal, cu_seqlens=mask.cu_seqlens)
    want = F.scaled_dot_product_attention(q, k, v, mask.dense(n, n))
    assert torch.allclose(got, want, atol=1e-12)
    for actual, expected in zip(
        *(torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (got, want)), strict=True
    ):
        assert torch.allclose(actual, expected, atol=1e-12)


def test_gradients_flow_to_a_single_tensor() -> None:
    q, k, v = tensors(8)
    v.requires_grad_()
    mask = packed(3, 2, 3, causal=True)
    out = ea.attention(q, k, v, mask=mask)
    out[:, :, 3:5].sum().backward()
    assert v.grad is not None
    assert v.grad.abs().sum((0, 1, 3)).bool().tolist() == [False] * 3 + [True] * 2 + [False] * 3


def test_tensors_of_an_overridden_forward_are_split() -> None:
    """The tensors that an overridden `forward` passes on are split, and it is not called again."""

    class Valueless(Recording):
        def forward(
            self, q: Tensor, k: Tensor, v: Tensor | None = None, mask: Mask | None = None, **i: Tensor
        ) -> Tensor:
            assert v is None
            return super().forward(q, k, k, mask, **i)

    attn = Valueless()
    q, k, _ = tensors(6)
    attn(q, k, None, packed(2, 4))
    assert attn.sizes == [(1, 2), (1, 4)]


def test_mechanisms_without_the_mask_field_refuse_it() -> None:
    class Older(Recording):
        known_mask_fields = MASK_FIELDS - {"cu_seqlens"}

    with pytest.raises(ea.UnsupportedError, match="Older does not support the mask field cu_seqlens"):
        Older()(*tensors(3), packed(3))


@pytest.mark.parametrize(
    ("mask", "size", "message"),
    [
        (packed(2, 2), 3, r"cu_seqlens must rise from 0 to N = 3, got \[0, 2, 4\]"),
        (packed(2), 3, r"must rise from 0 to N = 3, got \[0, 2\]"),
        (packed(), 3, r"must rise from 0 to N = 3, got \[0\]"),
        (packed(3, -1, 1), 3, r"must rise from 0 to N = 3, got \[0, 3, 2, 3\]"),
        (Mask(cu_seqlens=torch.tensor([1, 3])), 3, r"must rise from 0 to N = 3, got \[1, 3\]"),
        (packed(*[1] * 20), 3, r"got \[0, 1, 2, 3, 4\] .. \[16, 17, 18, 19, 20\]"),
        (packed(5), 0, r"must rise from 0 to N = 0, got \[0, 5\]"),
    ],
)
def test_invalid_cu_seqlens_are_refused(mask: Mask, size: int, message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        Recording()(*tensors(size), mask)
    with pytest.raises(ea.UsageError, match=message):
        mask.dense(size, size)


def test_cu_seqlens_needs_one_row_of_self_attention() -> None:
    q, k, v = tensors(3)
    with pytest.raises(ea.UsageError, match="cu_seqlens needs B = 1 and N = M, got B = 1, N = 2, M = 3"):
        Recording()(q[:, :, :2], k, v, packed(3))
    with pytest.raises(ea.UsageError, match="cu_seqlens needs B = 1 and N = M, got B = 2, N = 3, M = 3"):
        Recording()(*(x.expand(2, *x.shape[1:]) for x in (q, k, v)), packed(3))


def test_traits_are_checked_for_packed_calls() -> None:
    attn = Recording()
    attn.claims = Traits(causal=False, padding=False, cross=False, gradient=False)
    attn(*tensors(5), packed(2, 3))  # it is neither padding nor cross attention
    with pytest.raises(ea.UnsupportedError, match="does not support a causal mask"):
        attn(*tensors(5), packed(2, 3, causal=True))
    with pytest.raises(ea.UnsupportedError, match="has no gradient"):
        attn(*(x.requires_grad_() for x in tensors(5)), packed(2, 3))


def test_packed_lengths_are_differences_of_cu_seqlens() -> None:
    assert packed(2, 0, 1, 2).packed_lengths(5) == [2, 0, 1, 2]
    assert Mask().packed_lengths(5) == [5]
