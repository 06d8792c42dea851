"""Autocast, second derivatives and torch.func, for every registered mechanism."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
import torch
from specs import SAMPLE, SAMPLED
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.autocast import is_autocast_enabled
from efficient_attn.contract.decode_state import cache_dtype, state_bytes
from efficient_attn.testing import Call, Subject

subject = cache(Subject)
N = 70
REFUSALS = "has no second derivative; backend=dense has one|derivative for aten::.* is not implemented"


def draw_call(spec: str, dtype: torch.dtype = torch.float32, n: int = N) -> tuple[ea.Attention, Call]:
    s = subject(spec)
    shape = s.shape(n)
    mask = ea.Mask(causal=s.traits.causal)
    if reason := s.attn.why_not_dtype(torch.bfloat16):
        pytest.skip(reason)
    return s.make(shape, dtype=dtype), s.draw(shape, mask=mask, dtype=dtype)


def under_autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


# -- autocast ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SAMPLED)
def test_autocast_equals_casting_all_tensors(spec: str) -> None:
    attn, call = draw_call(spec)
    leaves = call.leaves()
    with under_autocast():
        out = leaves.run(attn)
        assert is_autocast_enabled(out)
    assert out.dtype == torch.bfloat16
    weight = torch.randn(out.shape).bfloat16()
    cast = leaves.change(lambda x: x.bfloat16())
    want = cast.run(attn)
    torch.testing.assert_close(out, want, rtol=0, atol=0)
    sources = list({id(x): x for x in (*leaves.tensors.values(), *attn.parameters())}.values())
    pairs = (torch.autograd.grad((x * weight).sum(), sources, materialize_grads=True) for x in (out, want))
    for one, other in zip(*pairs, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("spec", ["gqa:kv_heads=2", "longformer", "linear", "reformer"])
def test_a_backward_pass_under_autocast_equals_one_outside(spec: str) -> None:
    """torch advises against it, but it must work: the kernels' gradients are computed without autocast."""
    attn, call = draw_call(spec)
    with under_autocast():
        _, got = call.gradients(attn)
    with under_autocast():
        leaves = call.leaves()
        out = leaves.run(attn)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)
    want = torch.autograd.grad((out * weight).sum(), [leaves["q"]])
    torch.testing.assert_close(got["q" if not leaves.shares_qk else "k"], want[0], rtol=0, atol=0)


@pytest.mark.parametrize("spec", SAMPLED)
def test_gradients_under_autocast_are_close_to_float32(spec: str) -> None:
    """Within bfloat16's precision. Inputs are exact in bfloat16, so that hashes and signs do not change."""
    attn, call = draw_call(spec)
    call = call.change(lambda x: x.bfloat16().float())
    _, want = call.gradients(attn)
    with under_autocast():
        out, got = call.gradients(attn)
    assert out.dtype == torch.bfloat16
    for name, exact in want.items():
        difference, limit = (got[name] - exact).norm(), 0.03 * exact.norm() + 1e-3 * exact.numel() ** 0.5
        assert difference < limit, f"{name} differs by {difference:.3g}, more than {limit:.3g}"


def test_autocast_ignores_float64_and_the_meta_device() -> None:
    attn, call = draw_call("linear", torch.float64)
    with under_autocast():
        assert call.run(attn).dtype == torch.float64
    meta = draw_call("full")[1].change(lambda x: x.to("meta"))
    with under_autocast():
        assert meta.run(ea.create("full")).dtype == torch.float32


def train_losses(spec: str, *, autocast: bool) -> list[float]:
    layer = ea.MultiHeadAttention(32, 4, variant=spec, kv_heads=subject(spec).attn.kv_heads, max_len=N, seed=0)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 2, N, 32, generator=generator)
    mask = ea.Mask(causal=layer.attn.traits.causal)
    optimizer, losses = torch.optim.Adam(layer.parameters(), lr=0.01), []
    for _ in range(12):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = (layer(x, mask=mask).float() - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("spec", SAMPLE)
def test_a_layer_trains_under_autocast_as_in_float32(spec: str) -> None:
    plain, cast = (train_losses(spec, autocast=a) for a in (False, True))
    assert cast[-1] < 0.9 * cast[0]
    assert abs(cast[-1] - plain[-1]) < 0.03


DECODING = [case for case in SAMPLED if subject(case.values[0]).traits.decode]


@pytest.mark.parametrize("state_in_autocast", [False, True], ids=["state from outside", "state from autocast"])
@pytest.mark.parametrize("spec", DECODING)
def test_a_layer_decodes_under_autocast(spec: str, state_in_autocast: bool) -> None:
    draw_call(spec)  # skips if bfloat16 is not supported
    layer = ea.MultiHeadAttention(32, 4, variant=spec, kv_heads=subject(spec).attn.kv_heads, max_len=40, seed=0)
    x = torch.randn(2, 40, 32, generator=torch.Generator().manual_seed(1))
    state = layer.init_state(2, 40) if not state_in_autocast else None
    rows = []
    with torch.no_grad(), under_autocast():
        state = layer.init_state(2, 40) if state is None else state
        dtype, size = cache_dtype(state), state_bytes(state)
        assert dtype in (None, torch.bfloat16 if state_in_autocast else torch.float32)
        want = layer(x, mask=ea.Mask(causal=True))
        for at in (slice(0, 17), *(slice(i, i + 1) for i in range(17, 40))):
            out, state = layer.step(x[:, at], state)
            assert out.dtype == torch.bfloat16
            rows.append(out)
    assert (cache_dtype(state), state_bytes(state)) == (dtype, size)
    torch.testing.assert_close(torch.cat(rows, 1), want, rtol=0, atol=0.03)


# -- second derivatives -----------------------------------------------------------------------------------------------


def second_derivatives(attn: ea.Attention, call: Call) -> list[Tensor]:
    call = call.leaves()
    sources = list({id(x): x for x in call.tensors.values()}.values())
    out = call.run(attn)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    first = torch.autograd.grad((out * weight).sum(), sources, create_graph=True, materialize_grads=True)
    return list(torch.autograd.grad(torch.stack([g.sin().sum() for g in first]).sum(), sources, materialize_grads=True))


@pytest.mark.parametrize("spec", SAMPLED)
def test_second_derivatives_of_a_linear_loss_are_correct_or_refused(spec: str) -> None:
    """`once_differentiable` does not refuse these, but the kernels do; the conformance tests have a loss of squares."""
    attn, call = draw_call(spec, torch.float64)
    try:
        got = second_derivatives(attn, call)
    except RuntimeError as refusal:
        if not re.search(REFUSALS, str(refusal)):
            raise
        return
    attn.backend = "dense"
    for one, other in zip(got, second_derivatives(attn, call), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("spec", SAMPLED)
def test_oracles_have_second_derivatives(spec: str) -> None:
    attn, call = draw_call(spec, torch.float64, n=5)
    attn.backend = "dense"
    call = call.leaves()
    selecting = {name for name, i in attn.traits.inputs.items() if not i.gradient}
    named = {id(x): (name, x) for name, x in call.tensors.items() if name not in selecting}
    names, leaves = zip(*named.values(), strict=True)

    def run(*tensors: Tensor) -> Tensor:
        return call.with_(**dict(zip(names, tensors, strict=True))).run(attn)

    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


# -- torch.func -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SAMPLED)
def test_per_sample_gradients_equal_autograd(spec: str) -> None:
    """`torch.func.vmap` of `torch.func.grad` over the batch."""
    attn, call = draw_call(spec, torch.float64)
    call = call.leaves()
    out = call.run(attn)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    names, leaves = zip(*{id(x): (name, x) for name, x in call.tensors.items()}.values(), strict=True)
    want = torch.autograd.grad((out * weight).sum(), leaves, materialize_grads=True)

    def loss(w: Tensor, *tensors: Tensor) -> Tensor:
        return (call.with_(**{n: x[None] for n, x in zip(names, tensors, strict=True)}).run(attn)[0] * w).sum()

    each = torch.func.grad(loss, argnums=tuple(range(1, len(leaves) + 1)))
    got = torch.func.vmap(each)(weight, *(x.detach() for x in leaves))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("spec", ["performer", "random_feature"])
def test_torch_func_refuses_buffers_of_random_features(spec: str) -> None:
    attn, call = draw_call(spec)

    def loss(buffers: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(attn, buffers, (call["q"], call["k"], call["v"])).sum()

    buffers = dict(attn.named_buffers())
    with pytest.raises(ea.UnsupportedError, match=r"torch\.func does not support its map's tensors"):
        torch.func.grad(loss)(buffers)
    attn.backend = "dense"
    assert torch.func.grad(loss)(buffers)["directions"].any()


@pytest.mark.parametrize("spec", SAMPLED)
def test_parameters_alone_have_a_gradient_if_no_query_sees_a_key(spec: str) -> None:
    """As with a first batch of padding only: `backward` must not fail because nothing was computed."""
    attn, call = draw_call(spec, torch.float64)
    if not list(attn.parameters()):
        pytest.skip("has no parameters")
    batch = call["q"].shape[0]
    masks = [ea.Mask(causal=attn.traits.causal, key_lengths=torch.zeros(batch, dtype=torch.int64))]
    masks += [ea.Mask(causal=True, query_start=-2 * N)] * attn.traits.causal
    for mask in masks:
        out = replace(call, mask=mask).run(attn)
        out.sum().backward()
        assert not out.any()
        assert all(x.grad is None or not x.grad.any() for x in attn.parameters())
