"""Linformer: its definition and projections, invalid inputs, the projection kernel, and memory."""

from __future__ import annotations

import pytest
import torch
from forced_choice import force_implementation

import efficient_attn as ea
from efficient_attn.contract.shapes import Shape
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.kernels.autotuning.candidates import Tunable
from efficient_attn.kernels.half_precision import HALF
from efficient_attn.kernels.low_rank.projection import project
from efficient_attn.kernels.products import PRODUCTS
from efficient_attn.testing.tensor_comparison import assert_close
from efficient_attn.variants.low_rank.linformer import Linformer

SHARES = ("heads", "key_value", "none")


def make(spec: str = "linformer:rank=5", *, seed: int = 0, **dims: int) -> Linformer:
    attn = ea.create(spec, dims=ea.Dims(**{"heads": 4, "max_len": 30, **dims}), seed=seed).double()
    assert isinstance(attn, Linformer)
    return attn


def projections(attn: Linformer) -> tuple[torch.Tensor, torch.Tensor]:
    assert attn.by_values is not None
    return attn.by_keys.detach(), attn.by_values.detach()


def draw(m: int, *, n: int = 9, kv_heads: int = 4, dtype: torch.dtype = torch.float64):
    g = torch.Generator().manual_seed(m)
    return [torch.randn(2, h, x, 6, generator=g).to(dtype) for h, x in ((4, n), (kv_heads, m), (kv_heads, m))]


@pytest.mark.parametrize("m", [30, 17, 1])
def test_outputs_equal_the_definition(m: int) -> None:
    attn, (q, k, v) = make("linformer:rank=5:share=heads"), draw(m)
    e, f = (x[0, :, :m] for x in projections(attn))
    weights = torch.softmax(torch.einsum("bhnd,rm,bhmd->bhnr", q, e, k) / 6**0.5, -1)
    assert_close(attn(q, k, v), torch.einsum("bhnr,rm,bhmd->bhnd", weights, f, v), "definition")


@pytest.mark.parametrize("share", SHARES)
def test_identity_projections_give_full_attention(share: str) -> None:
    attn, (q, k, v) = make(f"linformer:rank=30:share={share}"), draw(30)
    with torch.no_grad():
        for p in attn.parameters():
            p.copy_(torch.eye(30).expand(p.shape))
    assert_close(attn(q, k, v), ea.create("full")(q, k, v), share)
    assert not torch.allclose(make(f"linformer:rank=30:share={share}")(q, k, v), attn(q, k, v))


def test_shapes_of_projections_depend_on_share() -> None:
    sizes = {share: [tuple(p.shape) for p in make(f"linformer:rank=5:share={share}").parameters()] for share in SHARES}
    assert sizes == {"heads": [(1, 5, 30)] * 2, "key_value": [(1, 5, 30)], "none": [(4, 5, 30)] * 2}
    assert [p.shape[0] for p in make("linformer:share=none", kv_heads=2).parameters()] == [2, 2]


def test_heads_share_projections_unless_share_is_none() -> None:
    q, k, v = (x[:, :1].expand(-1, 4, -1, -1) for x in draw(30))
    for share, same in (("heads", True), ("key_value", True), ("none", False)):
        out = make(f"linformer:rank=5:share={share}")(q, k, v)
        assert torch.allclose(out[:, 0], out[:, 1]) == same


def test_projected_keys_have_the_variance_of_keys() -> None:
    attn = make("linformer:rank=64", max_len=4096)
    mixed = attn.by_keys.detach() @ torch.randn(
        4096, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    assert 0.9 < float(mixed.var()) < 1.1


def test_projections_depend_on_the_seed() -> None:
    (e, f), same, (other, _) = (projections(make("linformer:rank=5:share=heads", seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(e, same[0])
    assert torch.equal(f, same[1])
    assert not torch.equal(e, other)
    assert not torch.equal(e, f)


def test_padded_rows_equal_trimmed_rows_and_empty_rows_are_zero() -> None:
    attn, (q, k, v) = make(), draw(30)
    out = attn(q, k, v, ea.Mask(key_lengths=torch.tensor([11, 0])))
    assert_close(out[:1], attn(q[:1], k[:1, :, :11], v[:1, :, :11]), "11 of 30 keys")
    assert torch.equal(out[1], torch.zeros_like(out[1]))


@pytest.mark.parametrize(
    ("spec", "dims", "message"),
    [
        ("linformer", ea.Dims(heads=4), "share=key_value needs dims with max_len for"),
        ("linformer:share=none", ea.Dims(heads=4), "share=none needs dims with max_len, and kv_heads or heads,"),
        ("linformer:share=none", ea.Dims(max_len=4), "share=none needs dims with max_len, and kv_heads or heads,"),
        ("linformer:rank=0", ea.Dims(max_len=4), "rank must be at least 1, not 0"),
        ("linformer:share=all", ea.Dims(max_len=4), "share='all' does not fit"),
    ],
)
def test_invalid_options_and_dims_are_reported(spec: str, dims: ea.Dims, message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        ea.create(spec, dims=dims)


@pytest.mark.parametrize("backend", ["projected", "dense"])
def test_too_many_keys_or_other_heads_are_refused(backend: str) -> None:
    with pytest.raises(ea.UsageError, match="max_len=30, got 31 keys"):
        make(f"linformer:backend={backend}")(*draw(31))
    with pytest.raises(ea.UsageError, match="created for 4 key-value heads, got 2"):
        make(f"linformer:share=none:backend={backend}")(*draw(30, kv_heads=2))


def test_cost_equals_the_matrix_products() -> None:
    assert make("linformer:rank=5").growth.cost(7, 11, False) == 5 * 7 + 5 * 11


# -- the projection kernel ------------------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda x: x,
    "[B, M, H, D] in memory": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every other column": lambda x: torch.stack([x, x + 1], -1)[..., 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tunable", "implementation"), [(t, name) for t in (PRODUCTS, HALF) for name in t.implementations]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_projections_and_gradients_equal_float64(
    dtype: torch.dtype, tunable: Tunable, implementation: str, layout: str
) -> None:
    with force_implementation(tunable, implementation):
        _compare_projections(dtype, layout)


def _compare_projections(dtype: torch.dtype, layout: str) -> None:
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    for heads, m, width in ((1, 17, 5), (3, 17, 5), (3, 1, 1)):
        e = torch.randn(heads, 4, m + 2).to(dtype)[..., :m].requires_grad_()
        x = LAYOUTS[layout](torch.randn(2, 3, m, width).to(dtype)).requires_grad_()
        for upstream in (torch.randn(2, 3, 4, width), torch.randn(2, 4, 3, width).transpose(1, 2)):
            (got,) = project(e, x)
            want = e.double() @ x.double()
            grads = [torch.autograd.grad(y, (e, x), upstream.to(y.dtype)) for y in (got, want)]
            for a, b in zip((got, *grads[0]), (want, *grads[1]), strict=True):
                assert a.dtype == dtype
                assert_close(a.double(), b.double(), f"{heads} heads, M={m}", tolerance=tolerance)


def test_second_derivatives_are_refused() -> None:
    x = torch.randn(1, 1, 3, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(project(torch.randn(1, 2, 3), x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="no second derivative; backend=dense has one"):
        grad.sum().backward()


@pytest.mark.slow
def test_memory_is_close_to_that_of_outputs_and_gradients() -> None:
    """A forward pass holds little more than the output; a training step holds less than six outputs: the output, the
    gradients of q, k and v, and those of the parameters."""
    n = 16384
    attn = ea.create("linformer", dims=ea.Dims(heads=4, max_len=n))
    q, k, v = (torch.randn(1, 4, n, 64, requires_grad=True) for _ in range(3))
    output = q.numel() * 4
    with torch.no_grad():
        peak = measure_footprint(lambda: attn(q, k, v), device="cpu").peak
    assert peak is not None
    assert output < peak <= 1.2 * output
    sources, upstream = (q, k, v, *attn.parameters()), torch.randn_like(q)
    step = measure_footprint(
        lambda: attn(q, k, v), lambda out: torch.autograd.grad(out, sources, upstream), device="cpu"
    )
    assert step.peak is not None
    assert step.peak <= 5.6 * output
    shape = Shape(batch=1, heads=4, kv_heads=4, n=n, m=n, head_dim=64, value_dim=64)
    estimates = (output + attn.workspace_bytes(shape, 4, causal=False, training=training) for training in (False, True))
    for estimate, measured in zip(estimates, (peak, step.peak), strict=True):
        assert measured / 2 < estimate < 2 * measured
