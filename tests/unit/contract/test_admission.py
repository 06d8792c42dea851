"""What is asked of an instance that does not claim it: dropout of weights, dtypes that a backend does not take."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.admission import check_dropout, check_dtype
from efficient_attn.kernels.native import building

DIMS = ea.Dims(heads=4, head_dim=8, max_len=32)
needs_compiler = pytest.mark.skipif(building.library("decode")[1] is not None, reason="no C++ compiler")


def tensors(dtype: torch.dtype = torch.float32, n: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 8, generator=g).to(dtype) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize("name", ea.names())
def test_dropout_is_claimed_or_refused_by_name_and_trait(name: str) -> None:
    attn = ea.create(name, dims=DIMS)
    assert attn.traits.dropout == (name in ("full", "gqa", "mqa"))
    attn.dropout = 0
    if attn.traits.dropout:
        attn.dropout = 0.25
        assert (attn.dropout, attn.dropping, attn.eval().dropping) == (0.25, 0.25, 0)
        assert "dropout=0.25" in repr(attn)
    else:
        with pytest.raises(ea.UnsupportedError, match=rf"^{name}: .* its traits do not claim dropout$"):
            attn.dropout = 0.25
        assert (attn.dropout, attn.dropping) == (0, 0)


class Replaced(ea.SoftmaxAttention):
    """Has a fast form of its own, from before there was dropout."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Inherits(ea.SoftmaxAttention):
    pass


def test_a_fast_form_of_ones_own_does_not_inherit_the_claim() -> None:
    assert Inherits().traits.dropout
    with pytest.raises(ea.UnsupportedError, match="Replaced: backend 'sdpa' does not drop attention weights"):
        Replaced().dropout = 0.1


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_dropout_is_a_probability(p: float) -> None:
    with pytest.raises(ea.UsageError, match="full: dropout is a probability from 0 to 1"):
        ea.create("full").dropout = p


@pytest.mark.parametrize("backend", ["sdpa", "dense"])
def test_all_weights_may_be_dropped(backend: str) -> None:
    attn = ea.create("full", backend=backend)
    attn.dropout = 1
    assert not attn(*tensors()).any()


@needs_compiler
def test_a_backend_that_drops_nothing_refuses_what_was_set_before() -> None:
    attn = ea.create("full")
    attn.dropout = 0.1
    attn.backend = "cpp"
    with pytest.raises(ea.UnsupportedError, match="full: backend 'cpp' does not drop attention weights"):
        attn(*tensors())
    attn.eval()(*tensors())
    attn.train().backend = "sdpa"
    attn(*tensors())
    check_dropout(attn, ea.Traits(dropout=True), 0.1)
    with pytest.raises(ea.UnsupportedError):
        check_dropout(attn, ea.Traits(), 0.1)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["full", "gqa", "mqa", "mla"])
def test_cpp_takes_no_half_precision(name: str, dtype: torch.dtype) -> None:
    attn = ea.create(name, dims=DIMS, backend="cpp")
    words = rf"^{name}:backend=cpp: backend 'cpp' takes torch.float32 and torch.float64 only, not {dtype}$"
    shape = ea.testing.Subject(name).shape(6, heads=4)
    q, k, v, _ = attn.sample(shape, generator=torch.Generator(), dtype=dtype)
    with pytest.raises(ea.UnsupportedError, match=words):
        attn(q, k, v)
    with pytest.raises(ea.UnsupportedError, match=words):
        attn.init_state(2, 6, dtype)
    with pytest.raises(ea.UnsupportedError, match=words):
        check_dtype(attn, dtype)
    assert attn.why_not_dtype(torch.float32) is attn.why_not_dtype(torch.float64) is None
    attn.backend = None
    assert attn.why_not_dtype(dtype) is None
    assert attn(q, k, v).dtype == dtype


@needs_compiler
@pytest.mark.parametrize("name", ["linear", "cosformer"])
def test_the_scan_in_cpp_takes_every_dtype(name: str) -> None:
    attn = ea.create(name, dims=DIMS, backend="cpp")
    mask = ea.Mask(causal=True)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        assert attn.why_not_dtype(dtype) is None
        assert attn(*tensors(dtype), mask).dtype == dtype
