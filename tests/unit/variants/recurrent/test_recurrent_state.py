"""Recurrent states: identities between mechanisms, ranges of gates, padding, and layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.shapes import Sample
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.variants.recurrent.recurrent_state import normalise

DIMS = ea.Dims(heads=4, kv_heads=2, head_dim=16, value_dim=12)
CAUSAL = ea.Mask(causal=True)
NAMES = tuple(ea.names(family="recurrent"))


def draw(n: int, *tails: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v, and Gaussians ``[2, 2, N, *tail]``."""
    generator = torch.Generator().manual_seed(seed + n)
    sizes = [(2, 4, n, 16), (2, 2, n, 16), (2, 2, n, 12), *((2, 2, n, *tail) for tail in tails)]
    return [torch.randn(*size, generator=generator, dtype=dtype) for size in sizes]


def sample(name: str, n: int, *, dtype: torch.dtype = torch.float32) -> tuple[ea.Attention, Sample]:
    attn = ea.create(name, dims=DIMS)
    return attn, attn.sample(ea.Shape(2, 4, 2, n, n, 16, 12), generator=torch.Generator().manual_seed(n), dtype=dtype)


def run(spec: str, q: Tensor, k: Tensor, v: Tensor, **inputs: Tensor) -> Tensor:
    return ea.create(spec, dims=DIMS).double()(q, k, v, CAUSAL, **inputs)


def test_equal_channels_are_one_gate() -> None:
    q, k, v, x, beta = draw(150, (), ())
    g, beta = -x.square(), beta.sigmoid()
    channels = g[..., None].expand(-1, -1, -1, 16)
    one = run("gated_delta_net", q, k, v, log_decay=g, beta=beta)
    torch.testing.assert_close(run("kda", q, k, v, log_decay=channels, beta=beta), one, rtol=0, atol=1e-10)


def test_gates_that_stay_open_leave_the_delta_rule() -> None:
    q, k, v, beta = draw(150, ())
    want = run("delta_net", q, k, v, beta=beta.sigmoid())
    got = run("gated_delta_net", q, k, v, log_decay=torch.zeros_like(beta), beta=beta.sigmoid())
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    got = run("delta_product:n=1", q, k, v, beta=beta.sigmoid()[..., None])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_orthogonal_keys_make_the_delta_rule_linear_attention() -> None:
    q, _, v = draw(16)
    k = torch.linalg.qr(torch.randn(2, 2, 16, 16, dtype=torch.float64)).Q
    got = run("delta_net", q, k, v, beta=torch.ones(2, 2, 16, dtype=torch.float64))
    scores = q @ k.repeat_interleave(2, 1).mT / 4
    torch.testing.assert_close(got, scores.tril() @ v.repeat_interleave(2, 1), rtol=0, atol=1e-10)


def test_constant_steps_are_retention() -> None:
    """Mamba-2 whose rates times steps are the decays of retention, one group for each head."""
    dims = ea.Dims(heads=4, kv_heads=4, head_dim=16, value_dim=12)
    q, k, v = (x.repeat_interleave(2 if x.shape[1] == 2 else 1, 1) for x in draw(200))
    attn = ea.create("mamba2", dims=dims).double()
    gamma = 1 - 2.0 ** (-5 - torch.arange(4, dtype=torch.float64))
    with torch.no_grad():
        attn.log_rate.copy_((-gamma.log()).log())  # type: ignore[operator]
    got = attn(q, k, v, CAUSAL, dt=torch.ones(2, 4, 200, dtype=torch.float64))
    want = ea.create("retention", dims=dims)(q, k, v, CAUSAL)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-7)  # a parameter is of float32


def test_equal_gates_of_gla_are_those_of_mamba2() -> None:
    q, k, v, x = draw(200, ())
    dt, attn = x.exp() / 50, ea.create("mamba2", dims=DIMS).double()
    got = attn(q, k, v, CAUSAL, dt=dt)
    log_decay = -attn.log_rate.exp()[:, None] * dt  # type: ignore[operator]
    channels = log_decay[..., None].expand(-1, -1, -1, 16)
    want = run("gla", q, k * dt[..., None], v, log_decay=channels)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_several_steps_are_so_many_positions() -> None:
    """DeltaProduct is the delta rule over the keys of all steps, read after the last of each position."""
    q, k, v, beta, keys, values = draw(60, (3,), (2, 16), (2, 12))
    got = run("delta_product:n=3", q, k, v, beta=2 * beta.sigmoid(), keys=keys, values=values)
    all_keys = torch.cat([k[..., None, :], keys], 3).flatten(2, 3)
    all_values = torch.cat([v[..., None, :], values], 3).flatten(2, 3)
    spread = q.repeat_interleave(3, 2)
    want = run("delta_net:beta_max=2", spread, all_keys, all_values, beta=2 * beta.sigmoid().flatten(2, 3))
    torch.testing.assert_close(got, want[:, :, 2::3], rtol=0, atol=1e-10)


def test_lightning_decays_by_head() -> None:
    q, k, v = draw(90)
    i = torch.arange(90, dtype=torch.float64)
    for share in (1.0, 0.25):
        decay = (-share * 2 * torch.arange(4)[:, None, None] * (i[:, None] - i).clamp(min=0)).exp().tril()
        want = (q @ k.repeat_interleave(2, 1).mT / 4 * decay) @ v.repeat_interleave(2, 1)
        torch.testing.assert_close(run(f"lightning:share={share}", q, k, v), want, rtol=0, atol=1e-10)
    with pytest.raises(ea.UsageError, match="share must be above 0"):
        ea.create("lightning:share=0", dims=DIMS)


@pytest.mark.parametrize("name", NAMES)
def test_hidden_positions_leave_the_state_as_it_is(name: str) -> None:
    """Padding before, between and after: the others have the result of the sequence without it."""
    attn, drawn = sample(name, 40, dtype=torch.float64)
    attn = attn.double()
    valid = torch.ones(2, 40, dtype=torch.bool)
    valid[:, :7] = valid[:, 20:23] = valid[:, 38:] = False
    kept = valid[0].nonzero()[:, 0]
    got = attn(drawn.q, drawn.k, drawn.v, ea.Mask(causal=True, key_mask=valid), **drawn.inputs)
    q, k, v = (x[:, :, kept] for x in (drawn.q, drawn.k, drawn.v))
    want = attn(q, k, v, CAUSAL, **{n: x[:, :, kept] for n, x in drawn.inputs.items()})
    torch.testing.assert_close(got[:, :, kept], want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_out_of_range_are_refused(name: str) -> None:
    attn, drawn = sample(name, 9)
    for wrong, gate in ((1e6, "dt"), (0.1, "log_decay"), (2.1, "beta"), (float("nan"), None)):
        for target in [
            n for n in drawn.inputs if n in (gate, *((n,) * (gate is None and n not in ("keys", "values"))))
        ]:
            changed = drawn.inputs[target].clone()
            changed.view(-1)[3] = -1.0 if target == "dt" and gate else wrong
            with pytest.raises(ea.UsageError, match=rf"{name}.*: {target} must be from"):
                attn(drawn.q, drawn.k, drawn.v, CAUSAL, **{**drawn.inputs, target: changed})


@pytest.mark.parametrize("spec", [*NAMES, "delta_net:beta_max=2"])
def test_layers_keep_gates_in_their_range(spec: str) -> None:
    layer = ea.MultiHeadAttention(64, 4, variant=spec, kv_heads=2)
    out = layer(1e3 * torch.randn(2, 30, 64), mask=CAUSAL)
    assert out.isfinite().all()
    out.sum().backward()
    gates = [n for n in layer.attn.traits.inputs if n not in ("keys", "values")]
    assert all(layer.get_submodule(f"{n}_proj").weight.grad is not None for n in gates)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_inputs_give_no_nan(name: str) -> None:
    """Zero keys, and gates at the ends of their ranges."""
    attn, drawn = sample(name, 100)
    ends = {"dt": (0.0, 1e4), "log_decay": (0.0, -1e4), "beta": (0.0, 1.0), "keys": (0.0, 1e3), "values": (0.0, 1e3)}
    for index in (0, 1):
        inputs = {n: torch.full_like(x, ends[n][index]) for n, x in drawn.inputs.items()}
        assert attn(drawn.q, torch.zeros_like(drawn.k), drawn.v, CAUSAL, **inputs).isfinite().all()
        assert attn(drawn.q, drawn.k, drawn.v, CAUSAL, **inputs).isfinite().all()


def test_keys_have_unit_norm_in_every_dtype() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        norms = normalise(torch.randn(2, 2, 7, 16, dtype=dtype)).float().norm(dim=-1)
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=4e-3)
    assert not normalise(torch.zeros(3, 4)).any()


def test_what_a_mechanism_needs_is_named() -> None:
    for spec, message in (
        ("gla", "gla: needs dims with head_dim"),
        ("kda", "kda: needs dims with head_dim"),
        ("mamba2", "mamba2 needs dims with kv_heads or heads"),
        ("delta_product", "delta_product: needs dims with head_dim"),
        ("delta_product:n=0", "n"),
        ("delta_net:beta_max=3", "beta_max"),
    ):
        with pytest.raises(ea.UsageError, match=message):
            ea.create(spec)
    attn, drawn = sample("kda", 9)
    with pytest.raises(ea.UsageError, match=r"takes the inputs \['beta', 'log_decay'\], got \['beta'\]"):
        attn(drawn.q, drawn.k, drawn.v, CAUSAL, beta=drawn.inputs["beta"])


@pytest.mark.parametrize("backend", ["chunked", "dense"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda k, v, beta: ea.Recurrence(k[:, :, 1:], v, beta=beta), r"k \[2, 2, 9, 16\], not \[2, 2, 8, 16\]"),
        (lambda k, v, beta: ea.Recurrence(k, v[..., 1:], beta=beta), r"v \[2, 2, 9, 12\], not \[2, 2, 9, 11\]"),
        (lambda k, v, beta: ea.Recurrence(k, v, -beta, beta), r"log_decay \[2, 2, 9, 1\] or \[2, 2, 9, 16\], not"),
        (lambda k, v, beta: ea.Recurrence(k, v, None, beta[..., None]), r"beta \[2, 2, 9\], not \[2, 2, 9, 1\]"),
        (lambda k, v, beta: ea.Recurrence(k, v), "no beta, but delta is true"),
    ],
)
def test_an_authors_recurrence_of_wrong_sizes_is_named(make: Callable, message: str, backend: str) -> None:
    class Own(ea.RecurrentAttention):
        delta = True
        declared = replace(ea.RecurrentAttention.declared, inputs={"beta": ea.Input("key")})

        def recur(self, k: Tensor, v: Tensor, **inputs: Tensor) -> ea.Recurrence:
            return make(k, v, inputs["beta"])

    q, k, v, beta = draw(9, ())
    attn = Own()
    attn.backend = backend
    with pytest.raises(ea.UsageError, match=f"Own: recur .*{message}"):
        attn(q, k, v, CAUSAL, beta=beta)


def test_gradients_of_the_reference_do_not_store_every_state() -> None:
    """Those of a long sequence would not fit the memory of `check`."""
    n, state_bytes = 512, 2 * 2 * 16 * 12 * 8
    q, k, v, x = draw(n, ())
    attn = ea.create("gated_delta_net", dims=DIMS, backend="dense").double()
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    inputs = {"log_decay": -x.square(), "beta": x.sigmoid()}
    footprint = measure_footprint(
        lambda: attn(*leaves, CAUSAL, **inputs), lambda out: torch.autograd.grad(out.sum(), leaves), device="cpu"
    )
    assert (footprint.saved or 0) < n * state_bytes
