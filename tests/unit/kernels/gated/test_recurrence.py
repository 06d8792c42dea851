"""The chunked recurrence equals the definition, position by position, with its gradients, whatever the lengths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from efficient_attn.kernels.gated import passes
from efficient_attn.kernels.gated.passes import cut
from efficient_attn.kernels.gated.recurrence import scan, step
from efficient_attn.kernels.gated.stretch import Inputs, invert

WIDTH, COLUMNS = 5, 3
KINDS = [(decay, delta) for decay in (None, 1, WIDTH) for delta in (False, True)]


def define(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, g, b = inputs
    outputs = []
    for t in range(k.shape[1]):
        if g is not None:
            state = state * g[:, t, :, None].exp()
        value = v[:, t, None]
        if b is not None:
            value = b[:, t, None, None] * (value - (k[:, t, :, None] * state).sum(1, keepdim=True))
        state = state + k[:, t, :, None] * value
        outputs.append(q[:, :, t] @ state * q.shape[3] ** -0.5)
    return torch.stack(outputs, 2), state


def draw(
    length: int, kind: tuple[int | None, bool], *, group: int = 1, heads: int = 2, low: float = -0.3, seed: int = 0
) -> tuple[Inputs, Tensor]:
    decay, delta = kind
    generator = torch.Generator().manual_seed(length + seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    k = normal(heads, length, WIDTH)
    k = k / k.norm(dim=-1, keepdim=True) if delta else k
    g = None if decay is None else low * torch.rand(heads, length, decay, generator=generator, dtype=torch.float64)
    b = 2 * torch.rand(heads, length, generator=generator, dtype=torch.float64) if delta else None
    inputs = Inputs(normal(heads, group, length, WIDTH), k, normal(heads, length, COLUMNS), g, b)
    return inputs, normal(heads, WIDTH, COLUMNS)


def with_gradients(run: object, inputs: Inputs, state: Tensor) -> list[Tensor]:
    """Outputs, last state, and the gradients of a random weighting of both."""
    leaves = [None if x is None else x.clone().requires_grad_() for x in (*inputs, state)]
    out, end = run(Inputs(*leaves[:-1]), leaves[-1])  # type: ignore[operator]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (out, end)]
    loss = (out * weights[0]).sum() + (end * weights[1]).sum()
    sources = [x for x in leaves if x is not None]
    return [out.detach(), end.detach(), *torch.autograd.grad(loss, sources)]


def assert_equal(inputs: Inputs, state: Tensor, eps: float = 1e-10) -> None:
    for mine, theirs in zip(with_gradients(scan, inputs, state), with_gradients(define, inputs, state), strict=True):
        scale = theirs.abs().max().clamp(min=1)
        torch.testing.assert_close(mine / scale, theirs / scale, rtol=0, atol=eps)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=8)
@given(length=st.integers(1, 300), group=st.integers(1, 3), low=st.sampled_from([-0.01, -1.0, -13.8]))
def test_chunks_equal_the_definition(kind: tuple[int | None, bool], length: int, group: int, low: float) -> None:
    assert_equal(*draw(length, kind, group=group, low=low))


@pytest.mark.parametrize("kind", KINDS)
def test_several_stretches_equal_the_definition(kind: tuple[int | None, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MAX_STRETCH", 128)
    inputs, state = draw(2 * 128 + 64 + 9, kind)
    assert len(cut(inputs)[1]) == 4
    assert_equal(inputs, state)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=6)
@given(length=st.integers(2, 400), data=st.data())
def test_a_sequence_cut_anywhere_equals_the_whole(
    kind: tuple[int | None, bool], length: int, data: st.DataObject
) -> None:
    inputs, state = draw(length, kind)
    whole, end = scan(inputs, state)
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=4)))
    parts = []
    for first, last in zip([0, *cuts], [*cuts, length], strict=True):
        q, k, v, g, b = inputs
        rows = slice(first, last)
        if first == last:
            continue
        part = Inputs(q[:, :, rows], k[:, rows], v[:, rows], *(None if x is None else x[:, rows] for x in (g, b)))
        out, state = step(part, state.clone()) if last - first == 1 else scan(part, state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=1e-10)
    torch.testing.assert_close(state, end, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("low", [-0.02, -13.8])
def test_float32_stays_close_to_float64(kind: tuple[int | None, bool], low: float) -> None:
    inputs, state = draw(3000, kind, low=low)
    single = Inputs(*(None if x is None else x.float() for x in inputs))
    for mine, theirs in zip(
        with_gradients(scan, single, state.float()), with_gradients(scan, inputs, state), strict=True
    ):
        assert (mine.double() - theirs).norm() < 1e-4 * theirs.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_float32(kind: tuple[int | None, bool]) -> None:
    inputs, state = draw(200, kind)
    half = Inputs(*(None if x is None else x.bfloat16() for x in inputs))
    exact = Inputs(*(None if x is None else x.double() for x in half))
    out, end = scan(half, state.float())
    want, want_end = define(exact, state)
    assert out.dtype == torch.bfloat16
    assert end.dtype == torch.float32
    assert (out.double() - want).norm() < 4e-3 * want.norm()
    assert (end.double() - want_end).norm() < 1e-5 * want_end.norm()


@pytest.mark.parametrize("kind", [(None, True), (1, False), (WIDTH, True)])
def test_no_state_of_a_position_is_stored_for_the_backward_pass(kind: tuple[int | None, bool]) -> None:
    inputs, state = draw(4096, kind)
    leaves = [None if x is None else x.requires_grad_() for x in inputs]
    saved: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        saved[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        scan(Inputs(*leaves), state)
    n_inputs = sum(x.numel() for x in inputs if x is not None)
    assert sum(saved.values()) <= n_inputs + 8 * state.numel()  # and the states before stretches


def test_the_state_is_not_changed() -> None:
    inputs, state = draw(100, (1, True))
    before = state.clone()
    scan(inputs, state)
    assert torch.equal(state, before)


def test_second_derivatives_are_refused() -> None:
    inputs, state = draw(20, (1, True))
    q = inputs.q.requires_grad_()
    out, _ = scan(inputs, state)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(Exception, match="second derivative"):
        grad.sum().backward()


def test_the_inverse_of_a_triangle_ignores_what_is_above() -> None:
    lower = torch.randn(3, 64, 64, dtype=torch.float64) / 8
    identity = torch.eye(64, dtype=torch.float64)
    torch.testing.assert_close(invert(lower) @ (identity + lower.tril(-1)), identity.expand(3, -1, -1))
